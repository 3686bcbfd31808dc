"""The configuration of an evaluation, and its policy: the model and weights, also from a run's folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from harbor_gym.config import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_N_CONCURRENT,
    AnyEpisode,
    MaxRetries,
    NConcurrent,
    OptionalPath,
    TerminalEnvConfig,
    aliases,
)
from harbor_gym.config.tracking import Tracking
from harbor_gym.errors import UsageError
from harbor_gym.types import ExecutorKind

MAX_TOKENS, MAX_CONTEXT_TOKENS, MAX_LORA_RANK = 4096, 32_768, 32
"""Defaults for a policy without a run, or whose run does not record them."""


class EvalConfig(BaseModel):
    """An evaluation of one policy on tasks. Each field is a flag of ``recipes/eval.py``, and so is each of ``env``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    paths: tuple[Path | str, ...] = Field(min_length=1)
    """Task directories, directories of tasks, git+URL@COMMIT#path, or a registry's org/name@ref."""

    registry_path: OptionalPath = cast("Any", None)
    """registry.json to look names up in, in place of Harbor's registry."""

    env: AnyEpisode
    """How each episode is played: in our own loop, or by an agent. Each task takes the place of ``env.task_dir``."""

    run: OptionalPath = cast("Any", None)
    """Folder of a training run: its model and checkpoints."""

    checkpoint: str = "last"
    """A checkpoint of the run by name, tinker://…, last, best, or base."""

    model_name: str | None = None
    """Base model, if no run is given."""

    renderer_name: str = "qwen3_instruct"
    """The model's tinker-cookbook renderer."""

    base_url: str | None = None
    """Address of a Tinker-compatible server. With ``model`` it is the address of an OpenAI-style chat endpoint."""

    model: str | None = None
    """Model name at the chat endpoint ``base_url``, instead of a run or a Tinker model."""

    api_key_env: str | None = None
    """Environment variable with the chat endpoint's key."""

    episodes: int = Field(default=8, ge=1)
    """Episodes of each task."""

    attempts: tuple[int, ...] = (1, 4, 8)
    """The values of k for pass@k, separated by commas; those above the number of episodes are left out."""

    threshold: float = 1.0
    """Reward at which an episode counts as solved."""

    n_concurrent: NConcurrent = DEFAULT_N_CONCURRENT

    rollout_executor: ExecutorKind | None = None
    """Play the episodes in other processes, one for each concurrent episode: of this machine, or Ray's."""

    rollout_starts_per_sec: float | None = Field(default=None, gt=0)
    """With Ray: starts of sandboxes per second, over all nodes."""

    max_retries: MaxRetries = DEFAULT_MAX_RETRIES

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest sampled message, in tokens."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""

    output: OptionalPath = cast("Any", None)
    """Folder for eval.json, transcripts and recordings. An interrupted evaluation in it continues, also in the middle
    of an episode; one of other settings, versions or tasks is refused. The default of ``harbor-gym eval`` is a new
    folder in ``runs/``."""

    fresh: bool = False
    """Remove the evaluation that is in the output folder, and begin anew."""

    track: Tracking = Tracking()
    """The experiment tracker that the result is sent to, if any."""

    _read_earlier_names = aliases.reading(aliases.EVALUATION)


@dataclass(frozen=True)
class EvaluatedPolicy:
    """The evaluated policy and its service."""

    model_name: str
    renderer_name: str
    checkpoint: str | None
    """Address of the weights; None is the base model."""

    max_tokens: int
    max_context_tokens: int
    max_lora_rank: int
    base_url: str | None
    is_served_here: bool
    server_dir: Path | None
    """State directory of the run's server; None without a run."""


def find_policy(config: EvalConfig) -> EvaluatedPolicy:
    """Return the policy of a configuration; values that are not configured come from the run's folder.

    Raises:
        UsageError: Not exactly one of run and model is given, the run has no such checkpoint, or a key is missing.
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
    group = _template(recorded)
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


def in_the_runs_format(config: EvalConfig) -> AnyEpisode:
    """Return the episode with the action format of the run, in which its policy writes, unless one is given."""
    from harbor_gym.report.metrics import run_config

    env = config.env
    if config.run is None or not isinstance(env, TerminalEnvConfig) or "action_format" in env.model_fields_set:
        return env
    known = (_template(run_config(config.run)).get("env") or {}).get("action_format")
    return env.model_copy(update={"action_format": known}) if isinstance(known, str) else env


def _template(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return how the groups of a run were played, as its ``config.json`` has it."""
    return (recorded.get("dataset_builder") or {}).get("template") or {}


def checkpoint_address(run: Path | None, checkpoint: str, kind: str) -> str | None:
    """Return the address of a checkpoint's weights; None for the base model.

    Args:
        run: Folder of the run.
        checkpoint: The checkpoint's name, an address, ``last``, ``best`` or ``base``.
        kind: The kind of address: ``state_path`` or ``sampler_path``.

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
