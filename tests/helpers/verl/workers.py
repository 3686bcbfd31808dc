"""verl's own agent loop worker around our loops, its LLM servers' client over any sampler of ours."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from verl.experimental.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from harbor_gym.types import Sampler
from tests.helpers.chats.chat_templates import QWEN3
from tests.helpers.chats.tokenizers import byte_level_tokenizer

FAKE = "harbor_gym.testing:FakeEnvironment"


class SamplerServers:
    """A stand-in for verl's ``LLMServerClient`` over a sampler of ours. It answers like verl's vLLM server.

    Args:
        sampler: Answers prompts of token ids.
        step: The step of the weights, which each answer counts up.
    """

    def __init__(self, sampler: Sampler, step: int = 3) -> None:
        self._sampler, self._step = sampler, step
        self.requests: Counter[str] = Counter()
        """Requests of each episode."""

        self.params: list[Mapping[str, Any]] = []

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        priority: int = 0,
        image_data: None = None,
        video_data: None = None,
    ) -> TokenOutput:
        self.requests[request_id] += 1
        self.params.append(sampling_params)
        sample = await self._sampler(prompt_ids)
        self._step += 1
        return TokenOutput(
            token_ids=list(sample.tokens),
            log_probs=None if sample.logprobs is None else list(sample.logprobs),
            stop_reason={"length": "length", "stop": "completed"}.get(sample.stop_reason, "aborted"),
            num_preempted=0,
            extra_fields={"min_global_steps": self._step - 1, "max_global_steps": self._step},
        )


def write_model(directory: Path) -> Path:
    """Write a tokenizer with a chat template, and a model's configuration without weights."""
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template, kept = QWEN3, tokenizer.chat_template
    try:
        tokenizer.save_pretrained(directory)
    finally:
        tokenizer.chat_template = kept
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    heads = {"num_key_value_heads": 1, "head_dim": 8}
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": len(tokenizer)}
    (directory / "config.json").write_text(json.dumps(config | shape | heads), encoding="utf-8")
    return directory


def verl_config(directory: Path, loops: Sequence[Mapping[str, Any]], **rollout: Any) -> DictConfig:
    """Return verl's whole configuration for a model and some loops, both written into a directory.

    Args:
        directory: An empty one.
        loops: Entries of verl's file of agent loops, each with its ``name`` and ``_target_``.
        rollout: Entries of ``actor_rollout_ref.rollout``; a double underscore stands for a dot.
    """
    plain = json.loads(json.dumps([dict(loop) for loop in loops], default=str))  # a file has no Path
    (directory / "loops.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    own: dict[str, Any] = {"name": "vllm", "prompt_length": 8000, "response_length": 12_000, **rollout}
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={write_model(directory / 'model')}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={directory / 'loops.yaml'}",
                *(f"actor_rollout_ref.rollout.{key.replace('__', '.')}={value}" for key, value in own.items()),
            ],
        )


def terminal_loop(**settings: Any) -> dict[str, Any]:
    """Return the entry of our own loop, on fakes."""
    own: dict[str, Any] = {"sandbox": FAKE, "env": {"confirm_task_complete": False}, "max_answer_tokens": 500}
    return {"name": "terminal", "_target_": "harbor_gym.adapters.verl.HarborTerminalLoop", **own, **settings}


def make_batch(task_dir: Path, agent_name: str, size: int = 1) -> DataProto:
    """Return rows as verl's dataset makes them of ours."""
    rows: dict[str, list[Any]] = {
        "raw_prompt": [[{"role": "user", "content": "x"}] for _ in range(size)],
        "agent_name": [agent_name] * size,
        "data_source": ["harbor"] * size,
        "reward_model": [{"style": "rule", "ground_truth": ""} for _ in range(size)],
        "extra_info": [{"index": 0, "task_dir": str(task_dir), "task": task_dir.name} for _ in range(size)],
        "index": [0] * size,
    }
    columns: dict[str, Any] = {}
    for name, values in rows.items():
        columns[name] = np.empty(size, dtype=object)
        columns[name][:] = values
    return DataProto.from_dict(non_tensors=columns)


async def play(config: DictConfig, servers: SamplerServers, batch: DataProto) -> DataProto:
    """Return the result of verl's own worker for a batch."""
    return await AgentLoopWorker(config, servers).generate_sequences(batch)  # pyright: ignore[reportArgumentType]


def row_of(output: DataProto, number: int = 0) -> tuple[list[int], list[int], list[int], list[float]]:
    """Return prompt, response, mask and log-probabilities of a row, without verl's padding."""
    row = {name: tensor[number].tolist() for name, tensor in output.batch.items()}
    width = len(row["prompts"])
    shown, answered = row["attention_mask"][:width], row["attention_mask"][width:]
    prompt = [token for token, is_real in zip(row["prompts"], shown, strict=True) if is_real]
    columns = (row[name][: sum(answered)] for name in ("responses", "response_mask", "rollout_log_probs"))
    response, mask, logprobs = columns
    return prompt, response, mask, logprobs
