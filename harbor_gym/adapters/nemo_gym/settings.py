"""An episode's settings, merged from the server's configuration and a request's overrides."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harbor_gym.config import FIELDS_WITH_AGENT, TerminalEnvConfig, describe_problems, require_fields_of_own_loop
from harbor_gym.errors import UsageError
from harbor_gym.types import DEFAULT_SANDBOX

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig


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

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the sandbox's class; they take precedence over the server's."""

    terminal_env: dict[str, Any] = Field(default_factory=dict)
    """Further fields of ``TerminalEnvConfig``; they take precedence over the server's."""

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

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the sandbox's class, over the server's and the alias's."""

    terminal_env: dict[str, Any] = Field(default_factory=dict)
    """Fields of ``TerminalEnvConfig``, over the server's and the alias's."""

    harbor_agent_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Options of the agent's class, over the server's."""

    harbor_agent_timeout: float | None = Field(default=None, gt=0)
    """Overrides the server's ``harbor_agent_timeout``, in seconds."""

    max_turns: int | None = Field(default=None, ge=1)
    """Overrides the server's ``max_turns``."""

    max_retries: int | None = Field(default=None, ge=0)
    """Overrides the server's ``max_retries``."""


class RolloutSettings(BaseModel):
    """The server's settings of episodes."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    harbor_datasets: dict[str, DatasetSettings] = Field(min_length=1)
    """Datasets by alias. A row names its task as ``alias::task``."""

    concurrency: int = Field(default=32, ge=1)
    """Concurrent episodes in this server."""

    sandbox: str = DEFAULT_SANDBOX
    """As ``TerminalEnvConfig.sandbox``."""

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the sandbox's class."""

    terminal_env: dict[str, Any] = Field(default_factory=dict)
    """Further fields of ``TerminalEnvConfig``; with an agent only those that apply to a trial."""

    harbor_agent: str | None = None
    """The Harbor agent that plays: a name of ``harbor_gym.gateway.agents.AGENTS``, or ``module.path:Class`` with
    ``{gateway_url}`` in place of its base URL in ``harbor_agent_kwargs``. None is this package's own policy loop."""

    harbor_agent_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Options of the agent's class, such as Terminus-2's ``interleaved_thinking``."""

    harbor_agent_timeout: float | None = Field(default=None, gt=0)
    """Seconds after which the episode is truncated and verified. With an agent they count from its first request and
    include sampling; in the own loop only the terminal's time counts. None: the task's own limit."""

    max_turns: int | None = Field(default=None, ge=1)
    """Answers of the policy after which the episode is truncated and verified. None: the default of
    ``TerminalEnvConfig``."""

    max_retries: int = Field(default=1, ge=0)
    """Retries of an episode after infrastructure failures."""

    require_token_ids: bool = False
    """For training: refuse a model server that returns no token ids, and mask rows without any."""

    model_timeout_sec: float = Field(default=1800.0, gt=0)
    """Longest wait for one answer of the model server, in seconds."""

    trials_dir: Path | None = None
    """Folder for the trials' folders, with a directory per alias; a relative path begins at the directory of ``init``.
    None removes them."""


@dataclass(frozen=True)
class EpisodePlan:
    """One episode with its merged settings."""

    instance_id: str
    """``alias::task``."""

    config: TerminalEnvConfig
    """The task, the sandbox and the budgets."""

    agent: "AgentConfig | None"
    """The agent that plays; None is the own loop."""

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
    if settings.harbor_agent is not None:
        _require_fields_of_agents(instance_id, settings, overrides)
    alias = instance_id.partition("::")[0]
    dataset = settings.harbor_datasets[alias]
    options = {**settings.sandbox_options, **dataset.sandbox_options}
    if dataset.workdir is not None:
        options["workdir"] = dataset.workdir
    given: dict[str, Any] = {
        "sandbox": settings.sandbox,
        "sandbox_options": {**options, **overrides.sandbox_options},
        **_chosen(max_turns=settings.max_turns, time_limit_sec=settings.harbor_agent_timeout),
        **settings.terminal_env,
        **dataset.terminal_env,
        **_chosen(max_turns=overrides.max_turns, time_limit_sec=overrides.harbor_agent_timeout),
        **overrides.terminal_env,
    }
    if settings.trials_dir is not None:
        given.setdefault("trials_dir", root / settings.trials_dir / alias)
    try:
        config = TerminalEnvConfig.model_validate({**given, "task_dir": task_dir})
    except ValidationError as exc:
        raise UsageError(f"{instance_id}: {describe_problems(exc)}") from exc
    if settings.harbor_agent is None:
        require_fields_of_own_loop(config)
    kwargs = {**settings.harbor_agent_kwargs, **overrides.harbor_agent_kwargs}
    retries = settings.max_retries if overrides.max_retries is None else overrides.max_retries
    return EpisodePlan(instance_id, config, _agent(settings.harbor_agent, kwargs), retries)


def _require_fields_of_agents(instance_id: str, settings: RolloutSettings, overrides: RequestOverrides) -> None:
    dataset = settings.harbor_datasets[instance_id.partition("::")[0]]
    given = {*settings.terminal_env, *dataset.terminal_env, *overrides.terminal_env}
    if foreign := sorted(given - FIELDS_WITH_AGENT):
        known = ", ".join(sorted(FIELDS_WITH_AGENT))
        raise UsageError(
            f"{instance_id}: terminal_env.{foreign[0]} is for our own loop, and {settings.harbor_agent} plays; "
            f"with an agent there are {known}"
        )


def _chosen(**values: Any) -> Mapping[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _agent(name: str | None, kwargs: dict[str, Any]) -> "AgentConfig | None":
    if name is None:
        return None
    from harbor.models.trial.config import AgentConfig

    return AgentConfig.model_validate({"import_path" if ":" in name else "name": name, "kwargs": kwargs})
