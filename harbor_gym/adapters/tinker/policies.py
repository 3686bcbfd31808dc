"""The policy of an evaluation: its kind, and the model and weights that a run's folder names for it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.types import ExecutorKind

MAX_TOKENS, MAX_CONTEXT_TOKENS, MAX_LORA_RANK = 4096, 32_768, 32
"""Of a policy whose run names none, or that comes from no run."""


class EvalConfig(BaseModel):
    """An evaluation of one policy on tasks. Each field is a flag of ``recipes/eval.py``, and so is each of ``env``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    paths: tuple[Path | str, ...] = Field(min_length=1)
    """Task directories, directories of tasks, git+URL@COMMIT#path, or a registry's org/name@ref."""

    registry_path: Path | None = None
    """registry.json to look names up in, in place of Harbor's registry."""

    env: TerminalEnvConfig
    """The sandbox and the budgets of each episode. Each task takes the place of ``env.task_dir``."""

    run: Path | None = None
    """Folder of a training run: its model and checkpoints."""

    checkpoint: str = "last"
    """The run's by name, tinker://…, last, best, or base."""

    model_name: str | None = None
    """Base model, where no run is given."""

    renderer_name: str = "qwen3_instruct"
    """Its tinker-cookbook renderer."""

    base_url: str | None = None
    """Address of a Tinker-compatible server. With ``model`` it is the address of an OpenAI-style chat endpoint."""

    model: str | None = None
    """Model name at the chat endpoint ``base_url``, instead of a run or a Tinker model."""

    api_key_env: str | None = None
    """Environment variable that holds the chat endpoint's key."""

    agent: str | None = None
    """One of Harbor's agents, or module.path:Class, to play with ``model``, instead of our own loop."""

    agent_options: dict[str, Any] = {}
    """NAME=VALUE, the agent's own; {gateway_url} stands for its model's address."""

    episodes: int = Field(default=8, ge=1)
    """Episodes of each task."""

    attempts: tuple[int, ...] = (1, 4, 8)
    """The k of pass@k, with commas between; those above the number of episodes are left out."""

    threshold: float = 1.0
    """Reward at which a task counts as solved."""

    concurrency: int = Field(default=8, ge=1)
    """Episodes at the same time."""

    rollout_executor: ExecutorKind | None = None
    """Play episodes in as many other processes: of this machine, or Ray's."""

    rollout_starts_per_sec: float | None = Field(default=None, gt=0)
    """With Ray: starts of sandboxes per second, over all nodes."""

    retries: int = Field(default=1, ge=0)
    """Fresh attempts after an infrastructure error."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Ceiling on one sampled message, in tokens."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""

    output: Path | None = None
    """Folder for eval.json, transcripts and recordings. An evaluation goes on from what it holds, also in the middle of
    an episode. ``harbor-gym eval`` keeps one that names none in ``runs/``."""


@dataclass(frozen=True)
class EvaluatedPolicy:
    """What is evaluated, and where it is served."""

    model_name: str
    renderer_name: str
    checkpoint: str | None
    """Address of its weights; None is the base model."""

    max_tokens: int
    max_context_tokens: int
    max_lora_rank: int
    base_url: str | None
    is_served_here: bool
    server_dir: Path | None
    """State of the run's server; None where there is none."""


def find_policy(config: EvalConfig) -> EvaluatedPolicy:
    """Return what is to be evaluated; what the configuration leaves open, the run's folder answers.

    Raises:
        UsageError: Neither or both of run and model are given, the run has no such checkpoint, or a key is missing.
    """
    from harbor_gym.report.metrics import run_config

    run = config.run
    if run is not None and config.model_name is not None:
        raise UsageError("--run and --model-name are two policies: give one of them")
    if run is None and config.model_name is None:
        raise UsageError("nothing to evaluate: give --model and --base-url (a chat endpoint), --run, or --model-name")
    recorded = run_config(run) if run is not None else {}
    if run is not None and "model_name" not in recorded:
        why = "it has no config.json with a model_name" if run.is_dir() else "it is no folder"
        raise UsageError(f"{run} is no training run: {why}: name the folder of a run (--log-path of train)")
    dataset = recorded.get("dataset_builder") or {}
    group = dataset.get("template") or {}
    name = config.model_name or recorded["model_name"]
    is_served_here = config.base_url is None and Path(name).is_dir()
    if not is_served_here and not os.environ.get("TINKER_API_KEY"):
        raise UsageError("TINKER_API_KEY is not set; a model that is a directory is served here without one")
    kind = "state_path" if is_served_here else "sampler_path"
    return EvaluatedPolicy(
        model_name=name,
        renderer_name=recorded.get("renderer_name") or group.get("renderer_name") or config.renderer_name,
        checkpoint=checkpoint_address(run, config.checkpoint, kind),
        max_tokens=config.max_tokens or recorded.get("max_tokens") or MAX_TOKENS,
        max_context_tokens=group.get("max_context_tokens") or MAX_CONTEXT_TOKENS,
        max_lora_rank=recorded.get("lora_rank") or MAX_LORA_RANK,
        base_url=config.base_url or (None if is_served_here else recorded.get("base_url")),
        is_served_here=is_served_here,
        server_dir=run / "server" if run is not None and is_served_here else None,
    )


def checkpoint_address(run: Path | None, checkpoint: str, kind: str) -> str | None:
    """Return the address of a checkpoint's weights, None for the base model's own.

    Args:
        run: Folder of the run.
        checkpoint: Its name, an address, ``last``, ``best`` or ``base``.
        kind: Which of its addresses: ``state_path`` or ``sampler_path``.

    Raises:
        UsageError: The run has no such checkpoint.
    """
    from harbor_gym.evaluation.best import read_best, read_checkpoints

    name = checkpoint
    if name == "best" and run is not None:
        name = read_best(run).checkpoint
    if name.startswith("tinker://"):
        return name
    if name == "base" or (run is None and name == "last"):
        return None
    known: dict[str, str] = {}
    if run is not None:
        known = {item["name"]: item[kind] for item in read_checkpoints(run) if kind in item}
    if name == "last" and known:
        return known[list(known)[-1]]
    if name not in known:
        names = ", ".join(known) or "none"
        raise UsageError(f"{run} has no checkpoint {name!r} to sample from; it has: {names}")
    return known[name]
