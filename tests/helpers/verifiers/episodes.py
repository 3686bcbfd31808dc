"""Episodes through verifiers' own environment and clients, against a token-id server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor_gym import EndReason, Sample
from harbor_gym.types import TokenSequence
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.sequences import of_mask

PLUGIN = "harbor-gym-verifiers"
RENDERER = {"name": "qwen3", "thinking_retention": "all"}
"""verifiers' way to write a chat; retention ``all`` keeps what was sampled in the prompt."""


@dataclass(frozen=True)
class Script:
    """A sampler that answers turn by turn from a list; the last answer again and again."""

    answers: tuple[str, ...]
    cut_at: int | None = None
    """The turn whose answer is cut at the token limit."""

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        tokenizer = byte_level_tokenizer()
        turn = tokenizer.decode(list(prompt)).count("<|im_start|>assistant") - 1
        tokens = tokenizer.encode(self.answers[min(turn, len(self.answers) - 1)], add_special_tokens=False)
        is_cut = turn == self.cut_at
        tokens = tokens if is_cut else [*tokens, tokenizer.convert_tokens_to_ids("<|im_end|>")]
        logprobs = [-(turn + 1) / (place + 1) for place in range(len(tokens))]
        return Sample(tokens, logprobs, "length" if is_cut else "stop")


def client_config(kind: str, server: EngineDouble, model_dir: Path | str) -> dict[str, Any]:
    """Return the settings of a client: ``train`` asks for token ids, ``eval`` for chats."""
    common = {"type": kind, "base_url": server.base_url, "api_key_var": "NO_SUCH_KEY"}
    if kind == "eval":
        return common
    return {**common, "renderer": RENDERER, "renderer_model_name": str(model_dir)}


def env_config(
    tasks: Sequence[Path | str], harness: Mapping[str, Any], agent: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of an environment with our taskset and harness."""
    return {
        "taskset": {"id": PLUGIN, "tasks": [str(task) for task in tasks]},
        "agent": {"harness": {"id": PLUGIN, **harness}, **(agent or {})},
    }


async def run_episodes(
    server: EngineDouble,
    env: Mapping[str, Any],
    *,
    model_dir: Path | str,
    client: str = "train",
    episodes: int = 1,
    at_once: int = 100,
    sampling: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run each task's episodes side by side, with verifiers' retries, and return them."""
    import asyncio

    import verifiers.v1 as vf
    from pydantic import TypeAdapter
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import ClientConfig
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    async with serve(server):
        config: Any = TypeAdapter(ClientConfig).validate_python(client_config(client, server, model_dir))
        context = ModelContext(client=config, model=server.model, sampling=SamplingConfig(**(sampling or {})))
        loaded: vf.Env = load_environment(resolve_env_config(dict(env)))
        async with loaded.serving():
            slots = [slot for task in loaded.taskset for slot in loaded.slots(task, episodes)]
            gate = asyncio.Semaphore(at_once)
            return await asyncio.gather(*(loaded.run_slot(slot, context, gate) for slot in slots))


def end_reason_of(trace: Any) -> EndReason:
    """Return why a verified trace ended, after checking that verifiers has its own word for a spent budget."""
    end_reason = EndReason(trace.info["harbor_gym"]["end_reason"])
    words = {"max_turns": EndReason.MAX_TURNS, "max_total_tokens": EndReason.CONTEXT_OVERFLOW}
    words |= {"max_output_tokens": EndReason.MAX_TOKENS, "agent_timeout": EndReason.TIME_LIMIT}
    assert words.get(trace.stop_condition, end_reason) is end_reason
    assert trace.is_truncated is (end_reason.is_truncation and end_reason is not EndReason.TIME_LIMIT)
    return end_reason


def sequence_of(trace: Any) -> TokenSequence:
    """Return a trace's only branch as a training sequence.

    Its first prompt ends where the first sampled token stands.
    """
    (branch,) = trace.branches
    first = branch.sampled_mask.index(True)
    mask = [int(is_sampled) for is_sampled in branch.sampled_mask]
    return of_mask(branch.token_ids[:first], branch.token_ids[first:], mask[first:], branch.logprobs[first:])
