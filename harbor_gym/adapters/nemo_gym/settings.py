"""An episode's settings, merged from the server's configuration and a request's overrides."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harbor_gym.config import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_N_CONCURRENT,
    AnyEpisode,
    MaxRetries,
    NConcurrent,
    aliases,
    read_episode,
)

_OPTIONS = ("sandbox_options", "agent_options")


class DatasetSettings(BaseModel):
    """The source of an alias's tasks, and settings that override the server's for them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    local_dataset_path: Path | None = None
    """A directory of tasks, one task, or a shipped task's name (``task:devops_task``). A relative path begins at the
    directory of ``init``."""

    dataset_name: str | None = None
    """A dataset of Harbor's registry."""

    dataset_version: str | None = None
    """Its version or tag; None is the latest."""

    git: str | None = None
    """``URL@COMMIT#path`` of a task or a directory of tasks in a git repository."""

    workdir: str | None = None
    """Working directory in the sandbox, as the sandbox's option ``workdir``, for sandboxes that have it."""

    env: dict[str, Any] = Field(default_factory=dict)
    """Fields of the episode, over the server's; ``sandbox_options`` and ``agent_options`` are joined with those."""

    _read_earlier_names = aliases.reading(aliases.NEMO_GYM)

    @model_validator(mode="after")
    def _require_one_source(self) -> Self:
        given = [name for name in ("local_dataset_path", "dataset_name", "git") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of local_dataset_path, dataset_name and git, got {' and '.join(given) or 'none'}"
            )
        if self.dataset_version is not None and self.dataset_name is None:
            raise ValueError("dataset_version belongs to dataset_name")
        return self


class RequestOverrides(BaseModel):
    """The settings that a row overrides, under its key ``harbor_gym``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    env: dict[str, Any] = Field(default_factory=dict)
    """Fields of the episode, over the server's and the alias's; options are joined with those."""

    max_retries: MaxRetries | None = None
    """Overrides the server's ``max_retries``."""

    _read_earlier_names = aliases.reading(aliases.NEMO_GYM)


class RolloutSettings(BaseModel):
    """The server's settings of episodes."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    harbor_datasets: dict[str, DatasetSettings] = Field(min_length=1)
    """Datasets by alias. A row names its task as ``alias::task``."""

    env: dict[str, Any] = Field(default_factory=dict)
    """Fields of each episode: with ``agent`` those of ``AgentEpisodeConfig``, else those of ``TerminalEnvConfig``. A
    relative ``trials_dir`` begins at the directory of ``init``, and has a directory per alias."""

    n_concurrent: NConcurrent = DEFAULT_N_CONCURRENT
    """Concurrent episodes in this server."""

    max_retries: MaxRetries = DEFAULT_MAX_RETRIES

    require_token_ids: bool = False
    """For training: refuse a model server that returns no token ids, and mask rows without any."""

    model_timeout_sec: float = Field(default=1800.0, gt=0)
    """Longest wait for one answer of the model server, in seconds."""

    _read_earlier_names = aliases.reading(aliases.NEMO_GYM)


@dataclass(frozen=True)
class EpisodePlan:
    """One episode with its merged settings."""

    config: AnyEpisode
    """How it is played."""

    max_retries: int
    """Retries after infrastructure failures."""


def plan_episode(
    settings: RolloutSettings, instance_id: str, task_dir: Path, overrides: RequestOverrides, *, root: Path
) -> EpisodePlan:
    """Merge a row's settings: the request's override the alias's, which override the server's.

    Args:
        settings: The server's settings.
        instance_id: ``alias::task``, with a configured alias.
        task_dir: The task's directory.
        overrides: The request's settings.
        root: The base of a relative ``trials_dir``.

    Raises:
        UsageError: The settings are invalid or contradict each other.
    """
    alias = instance_id.partition("::")[0]
    dataset = settings.harbor_datasets[alias]
    workdir = {} if dataset.workdir is None else {"sandbox_options": {"workdir": dataset.workdir}}
    given: dict[str, Any] = {}
    for fields in (settings.env, dataset.env, workdir, overrides.env):
        options = {name: {**given.get(name, {}), **fields[name]} for name in _OPTIONS if name in fields}
        given = {**given, **fields, **options}
    if given.get("trials_dir") is not None and "trials_dir" not in dataset.env | overrides.env:
        given["trials_dir"] = root / given["trials_dir"] / alias
    retries = settings.max_retries if overrides.max_retries is None else overrides.max_retries
    return EpisodePlan(read_episode({**given, "task_dir": task_dir}, f"{instance_id}: env"), retries)
