"""Complete trainings on the letters' task, in minutes on a CPU: the policy is made, and TRL trains it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from harbor_gym.adapters.trl.layout import AsyncGRPOConfig, AsyncGRPOTrainer
from harbor_gym.trl import HarborSpec

from .engine import CompletionsEngine
from .letters import SETTINGS, make_letter_policy, write_letter_task
from .on_cpu import EngineWeights, async_grpo_on_cpu

LEARNING_RATE = 0.25
"""Learning rate of plain SGD. AdamW's steps have the same size for small gradients, and destroy so small a policy."""

METRICS_NAME = "metrics.jsonl"
_MAX_GRAD_NORM = 0.25
_MAX_TOKENS = 48
_MAX_CONTEXT_TOKENS = 4096


def train_letters(
    out_dir: Path,
    *,
    agent: str = "bash",
    sandbox: str = "local",
    steps: int = 15,
    group_size: int = 16,
    pool_size: int | None = None,
    seed: int = 0,
    warm_start_steps: int = 500,
) -> list[float]:
    """Train the letters' policy with ``GRPOTrainer``, and return each step's mean reward.

    Args:
        out_dir: Folder for the task, the initial policy and ``metrics.jsonl``.
        agent: ``bash``, through ``environment_factory``, or ``terminal``, through ``rollout_func``.
        sandbox: See ``TerminalEnvConfig.sandbox``.
        steps: Optimizer steps, each on one group.
        group_size: Episodes per group.
        pool_size: Sandboxes that a warm pool keeps ready; None starts one per episode.
        seed: Seed of the initial weights and the sampling.
        warm_start_steps: Steps of imitation. With fewer steps the policy makes typing errors more often, and the
            gradient of one such episode can destroy it.
    """
    with _spec(out_dir, agent, sandbox, pool_size) as spec:
        _, model, tokenizer = make_letter_policy(spec, out_dir / "policy", seed=seed, steps=warm_start_steps)
        args = GRPOConfig(
            **_arguments(out_dir, steps, group_size, seed),
            max_completion_length=_MAX_TOKENS,
            mask_truncated_completions=True,
            max_tool_calling_iterations=3,
            beta=0.0,
        )
        trainer: Any = GRPOTrainer(model=model, args=args, processing_class=tokenizer, **spec.trainer_arguments)
        trainer.train()
    return _write_metrics(trainer.state.log_history, out_dir)


def train_letters_async(
    out_dir: Path,
    *,
    sandbox: str = "local",
    steps: int = 15,
    group_size: int = 16,
    max_staleness: int = 0,
    seed: int = 0,
    warm_start_steps: int = 500,
) -> list[float]:
    """Train the letters' policy with ``AsyncGRPOTrainer``: rollouts in another process, with an engine of this one.

    Args:
        out_dir: See :func:`train_letters`.
        sandbox: See :func:`train_letters`.
        steps: See :func:`train_letters`.
        group_size: See :func:`train_letters`.
        max_staleness: Updates of the weights after which a sample is no longer trained on.
        seed: Seed of the initial weights.
        warm_start_steps: See :func:`train_letters`.

    Returns:
        Each step's mean reward.
    """
    with _spec(out_dir, "terminal", sandbox, None) as spec, async_grpo_on_cpu():
        policy, model, tokenizer = make_letter_policy(spec, out_dir / "policy", seed=seed, steps=warm_start_steps)
        with CompletionsEngine(model, tokenizer) as engine:
            args = AsyncGRPOConfig(
                **_arguments(out_dir, steps, group_size, seed),
                vllm_server_base_url=engine.url,
                max_completion_length=_MAX_TOKENS,
                max_staleness=max_staleness,
                token_budget=-1,
            )
            worker = spec.rollout_worker(args, tokenizer, model=str(policy))
            trainer: Any = AsyncGRPOTrainer(
                model=str(policy),
                args=args,
                train_dataset=spec.train_dataset,
                processing_class=tokenizer,
                rollout_worker=worker,
                weight_transfer=EngineWeights(engine),
            )
            trainer.train()
    return _write_metrics(trainer.state.log_history, out_dir)


def _spec(out_dir: Path, agent: str, sandbox: str, pool_size: int | None) -> HarborSpec:
    own: dict[str, Any] = {"max_turns": 3}
    if agent == "terminal":
        own |= {**SETTINGS, "max_context_tokens": _MAX_CONTEXT_TOKENS}
    task = write_letter_task(out_dir / "task")
    return HarborSpec(task, agent=agent, sandbox=sandbox, pool_size=pool_size, **own)


def _arguments(out_dir: Path, steps: int, group_size: int, seed: int) -> dict[str, Any]:
    return {
        "output_dir": str(out_dir),
        "per_device_train_batch_size": group_size,
        "num_generations": group_size,
        "max_steps": steps,
        "optim": "sgd",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": _MAX_GRAD_NORM,
        "seed": seed,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }


def _write_metrics(history: Sequence[dict[str, Any]], out_dir: Path) -> list[float]:
    rows = [row for row in history if "reward" in row]
    (out_dir / METRICS_NAME).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return [float(row["reward"]) for row in rows]
