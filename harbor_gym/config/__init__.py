"""Configuration objects: frozen, without unknown fields, passed whole."""

import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, override

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from harbor_gym._runtime.imports import name_of
from harbor_gym._runtime.shipped import resolve_shipped
from harbor_gym.config.snapshot import Snapshot as Snapshot
from harbor_gym.config.snapshot import read_defaults
from harbor_gym.config.verify_paths import VerifyPaths, check_paths
from harbor_gym.errors import UsageError
from harbor_gym.types import (
    DEFAULT_MAX_TURNS,
    DEFAULT_SANDBOX,
    ActionFormat,
    ForkMode,
    Severity,
    StartRule,
    TrainSegments,
)

RewardFunction = Callable[[Mapping[str, float]], float]
"""Makes the scalar of a verifier's rewards, given by name."""

AmbiguousFailures = Literal["zero", "infrastructure"]
"""The treatment of a missing verdict for which either the policy or the task may be responsible."""


def describe_problems(error: ValidationError) -> str:
    """Return the names of the invalid fields and their problems, on one line."""
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False))


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __repr_args__(self) -> Generator[tuple[str | None, Any]]:
        """Yield what differs from the defaults. Text in a mapping may be a secret and is left out."""
        for name, info in type(self).model_fields.items():
            if (value := getattr(self, name)) != info.get_default(call_default_factory=True, validated_data={}):
                yield name, _without_secrets(value)


class TerminalConfig(_Config):
    """The shell session inside the sandbox."""

    columns: int = Field(default=160, ge=20, le=1000)
    """Pane width in character cells."""

    rows: int = Field(default=40, ge=5, le=500)
    """Pane height in character cells."""

    history_lines: int = Field(default=50_000, ge=1000)
    """Scrollback kept by tmux, in lines. Output that scrolls further is lost and reported as such."""

    max_observation_bytes: int = Field(default=10_000, ge=200)
    """Ceiling on one observation, in UTF-8 bytes; the middle is cut at line boundaries and the cut is stated."""

    min_wait_sec: float = Field(default=1.0, ge=0)
    """Floor under every command's ``duration`` (seconds). Costs nothing when the prompt returns early."""

    max_wait_sec: float = Field(default=60.0, gt=0)
    """Cap on every command's ``duration`` (seconds)."""

    wait: Literal["early", "exact"] = "early"
    """``early``: ``duration`` is a ceiling. ``exact``: every command waits its whole ``duration``, without a floor, as
    under Terminus-2."""

    keys: Literal["exact", "literal", "harbor"] | None = None
    """``exact``: a key's name on its own is that key, other text is sent byte by byte. ``literal``: the same, and the
    shell reads a line unchanged, without completion and history expansion, and control characters as characters.
    ``harbor``: tmux reads the keystrokes as under Terminus-2, see :mod:`harbor_gym.terminal.screen.terminus_keys`.
    None: ``literal`` where the policy calls a tool with a command's text (``bash-tool``), else ``exact``."""

    pager: str | None = None
    """PAGER, GIT_PAGER, MANPAGER and SYSTEMD_PAGER of the shell, so that no pager takes the next command for keys.
    None: ``cat`` where ``keys`` is ``literal``, elsewhere what the image sets. An empty string leaves the image's."""

    transport: Literal["auto", "portable", "persistent"] = "auto"
    """``persistent`` keeps a channel into the sandbox open (local, docker, apptainer); ``portable`` is one ``exec`` per
    step, on any sandbox; ``auto`` is ``persistent`` where that is available."""


def _without_secrets(value: Any, *, is_inner: bool = False) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {name: _without_secrets(item, is_inner=True) for name, item in items}
    return value if not is_inner or isinstance(value, int | float | None) else "…"


if TYPE_CHECKING:

    class _Given[Kept, Taken]:
        """A field that takes more types than it keeps: type checkers take ``__set__``'s type for the constructor's."""

        def __get__(self, instance: object, owner: object) -> Kept: ...

        def __set__(self, instance: object, value: Taken) -> None: ...

    _Path = _Given[Path, str | os.PathLike[str]]
    OptionalPath = _Given[Path | None, str | os.PathLike[str] | None]
    _Start = _Given[Path | Snapshot | None, str | os.PathLike[str] | Snapshot | None]
    _Terminal = _Given[TerminalConfig, TerminalConfig | Mapping[str, Any]]
else:
    _AsText = BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)
    _Path = Annotated[Path, _AsText]
    OptionalPath = Annotated[Path | None, _AsText]
    _Start = Annotated[Path | InstanceOf[Snapshot] | None, _AsText]
    _Terminal = TerminalConfig


class EpisodeConfig(_Config):
    """What every episode has, whoever plays it: the task, the sandbox, the budgets, the reward and the grading.

    Our own loop plays it (:class:`TerminalEnvConfig`), or one of Harbor's agents (:class:`AgentEpisodeConfig`).
    """

    task_dir: _Path
    """Harbor task directory (``task.toml``, ``instruction.md``, ``environment/``, ``tests/``), or ``task:NAME`` of one
    that is shipped with the package."""

    sandbox: str = DEFAULT_SANDBOX
    """``local``, a Harbor environment type by name (``docker``, ``daytona``, …; ``harbor-gym doctor`` lists them), or
    ``module.path:Class``."""

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the sandbox class (Harbor's ``environment.kwargs``)."""

    max_turns: int | None = Field(default=DEFAULT_MAX_TURNS, ge=1)
    """Answers of the policy after which the episode is truncated and verified; None is no limit."""

    time_limit_sec: float | None = Field(default=None, gt=0)
    """Seconds after which the episode is truncated and verified: of terminal time in our own loop, where the policy's
    thinking time does not count, and of all time from an agent's first request on. None: the task's own
    ``[agent] timeout_sec``, if any; in a multi-step task it, or the step's own, limits each step, after which the next
    one begins, as under Harbor."""

    reward_key: str | None = None
    """The key of the verifier's rewards that is the scalar. None: ``reward``, or the only key."""

    reward_function: str | RewardFunction | None = None
    """Compute the scalar from all keys instead: ``mean``, ``min``, ``max``, ``sum``, or ``module.path:function``. In
    Python also the function itself: it gets the verifier's rewards by name and returns a finite number, and where
    another process plays the episode or goes on with it, it has to be at the top level of a module."""

    zero_reward_on_limit: bool = False
    """Give no reward above 0 to an episode that a budget cut short (``info["truncated"]``): ``info["episode_reward"]``
    is at most 0. Negative rewards stay, ``info["rewards"]`` stays the verifier's, and ``zero_reward_on_limit`` in the
    metrics marks such an episode. A step's own time limit does not end the episode if another step follows."""

    keep_agent_processes: bool | None = None
    """Keep the policy's processes running during grading (for tasks that ask for a service), and in a multi-step task
    afterwards, as Harbor does. They can send signals to a verifier in the same sandbox, and change files that it uses,
    as far as their user's rights allow; on ``local`` and ``apptainer`` not its /tests and /logs/verifier. False: stop
    them. None: ``keep_agent_processes`` in the task's ``[metadata]``; without that, they are kept unless the verifier
    has a pristine view (``verify_paths``)."""

    verify_paths: Literal["auto", "off"] | tuple[PurePosixPath, ...] = "auto"
    """Grade in a pristine view: a verifier in the policy's sandbox gets the original image, with separate /tests, /tmp
    and /logs/verifier, and only these paths of the policy's files. Processes and network are the sandbox's.
    ``auto``: the paths of ``verify_paths`` in the task's ``[metadata]``; Harbor's grading where there are none or the
    sandbox has no such view, which is logged once. ``off``: Harbor's grading. Given paths are a
    :class:`harbor_gym.errors.TaskError` on a sandbox without such a view."""

    ambiguous_failures: AmbiguousFailures = "zero"
    """How to count a missing verdict that the policy or the task may have caused: a verifier that ran out of time or
    memory in the policy's own sandbox, where its tests load the policy's files, or gave no verdict that can be read,
    though it gives one in an untouched sandbox, or a later step's set-up that failed there. ``zero``: the policy's
    failure, reward 0, with the reason in ``info["breakage"]``.
    ``infrastructure``: a :class:`harbor_gym.errors.VerifierError` or ``SandboxStartError``, retried and then masked."""

    require_audit: OptionalPath = cast("Any", None)
    """Folder of a harbor-gym audit: only tasks with a receipt there of their present files are played. Where a list of
    tasks is made, the others are left out, and a line says how many; elsewhere they are a
    :class:`harbor_gym.errors.TaskError`."""

    refused_findings: Severity = Severity.ERROR
    """With ``require_audit``: refuse tasks with a finding as bad as this, too."""

    trials_dir: OptionalPath = cast("Any", None)
    """Keep each trial's folder (logs, result.json) below this directory. None: a temporary one, removed at close."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_fields_of_the_other_player(cls, values: Any) -> Any:
        return _own_fields(cls, values) if isinstance(values, dict) else values

    @field_validator("task_dir")
    @classmethod
    def _find_shipped(cls, value: Path) -> Path:
        try:
            return resolve_shipped(value)
        except UsageError as exc:
            raise ValueError(str(exc)) from exc

    @field_serializer("reward_function", when_used="json")
    def _by_name(self, value: str | RewardFunction | None) -> str | None:
        return name_of(value) if callable(value) else value

    @field_validator("verify_paths")
    @classmethod
    def _require_carriable(cls, value: VerifyPaths) -> VerifyPaths:
        return check_paths(value) if isinstance(value, tuple) else value


class TerminalEnvConfig(EpisodeConfig):
    """An episode of our own loop: the configuration of an :class:`harbor_gym.AsyncTerminalGymEnv`."""

    setup_command: str | None = Field(default=None, min_length=1)
    """Shell text that root runs before the policy starts, in the task's sandbox and with its network. Only files are
    kept: processes that it leaves running may be gone. ``local`` and ``docker`` run it once, with the image's
    environment only, and start every sandbox from the resulting files. Any other sandbox runs it at each start, and so
    does ``docker`` for a task with a Compose file, mounts or a declared volume (``info["setup"]``)."""

    terminal: _Terminal = cast("Any", TerminalConfig())
    """Pane size, waits and the observation budget."""

    action_format: ActionFormat = ActionFormat.TERMINUS_JSON
    """How the policy's messages are written; the system prompt of a chat policy follows it."""

    mcp_tools: bool = True
    """In a format with tool calls (``bash-tool``), the tools of the task's MCP servers can be called like ``bash``: the
    servers are started or reached inside the sandbox, and ``instruction`` has the schemas. False, and in every other
    format: the instruction names the servers, and the policy uses them from its shell."""

    start_from: _Start = cast("Any", None)
    """Begin each episode at the turn of a :class:`harbor_gym.Snapshot`, given itself or by its path, or in the middle
    of an earlier episode, given by its transcript. Its turns and terminal time count toward the budgets. A run's
    folder, or a folder of transcripts: each group of episodes, and each episode of an evaluation, draws one of its
    task's (:class:`harbor_gym.starts.Starts`). Fields that are not given are the snapshot's, or those of the folder's
    first transcript."""

    start_turn: Annotated[int, Field(ge=0)] | StartRule | None = None
    """The number of the transcript's turns that the episode begins after, or the rule by which it is drawn: ``mid``;
    ``uniform``; ``backward``, in a training run: before the last turn at first, and a turn earlier after each batch
    with a mean reward of at least 0.5. None is before the last turn, and where a snapshot was taken."""

    start_where: tuple[str, ...] = ()
    """Condition on an episode of the folder ``start_from``, as in ``harbor-gym export``: on ``task``, ``split``,
    ``batch``, ``group``, ``episode``, ``end_reason`` or ``reward``, as in ``reward=1`` or ``split!=test``."""

    start_mode: ForkMode = "auto"
    """How ``start_from`` is followed. ``replay``: its keystrokes are typed in the fresh sandbox, and each screen is
    compared (:class:`harbor_gym.errors.ForkDivergedError`). ``exact``: the processes and files of the snapshot's dump
    are restored; trust a dump like code of your own. ``auto``: ``exact`` if there is a dump that can be restored here,
    else ``replay``; ``info["fork_mode"]`` states which, and the log why."""

    copy_command: str | None = Field(default=None, min_length=1)
    """Shell text that runs once in each copy of an episode, after :meth:`harbor_gym.AsyncTerminalGymEnv.fork` and
    ``start_from``, before the copy's first turn: as the policy's user, beside the terminal, with a random number of
    its own as HARBOR_GYM_COPY, so that programs that run on can draw other numbers than in the siblings. It is no turn
    and takes none of the budgets. A status other than 0 is a :class:`harbor_gym.errors.SandboxStartError`."""

    system_prompt: str | None = Field(default=None, min_length=1)
    """The system message of a chat policy, which must then state the action format's rules. None: the action
    format's."""

    max_consecutive_parse_failures: int | None = Field(default=3, ge=1)
    """Unreadable actions in a row that end the episode; None is no limit."""

    confirm_task_complete: bool = True
    """Ask once for confirmation when the policy declares the task complete, as Terminus-2 does."""

    step_rewards: bool = False
    """In a multi-step task whose reward is the mean of its steps, give each step's share of it to the transition that
    ended the step, and the rest to the last transition. False: the last transition has the whole reward. Either way the
    transitions sum to ``info["episode_reward"]``."""

    verifier: dict[str, Any] = Field(default_factory=dict)
    """Harbor's settings of a run's verifier: ``import_path`` and ``kwargs`` of a verifier of your own, ``env`` (write
    secrets as ``${NAME}``), ``override_timeout_sec``, ``max_timeout_sec``. A task sets its own in its task.toml."""

    compaction: Literal["none", "window", "summary"] = "none"
    """What to do when the next prompt is longer than ``compact_at``. ``none``: the episode ends as ``context_overflow``
    once a full answer has no room. ``window``: older turns are left out, and one line says how many; the task, the
    instruction of each step and the latest turns stay, token for token. ``summary``: the policy is asked for a summary,
    and a new conversation begins with the task, the summary and the latest output; after two summaries that are empty
    or cut, older turns are left out instead. The episode then consists of several training sequences, each with its
    reward. docs/guide/long_horizons.md lists the trainers that take such episodes."""

    compact_at: float | None = Field(default=None, gt=0)
    """Longest prompt that is not compacted: in tokens if above 1, else a share of the context window. None: the longest
    one that leaves room for a full answer."""

    max_compactions: int | None = Field(default=None, ge=1)
    """Compactions of an episode after which it ends as ``context_overflow``; None is no limit."""

    train_summaries: bool = True
    """Train the summaries that ``compaction="summary"`` asks for. False: what trains an episode never sees them; the
    transcript has them."""

    recording_path: OptionalPath = cast("Any", None)
    """Record each episode here as an asciicast, replacing the last one. None: ``recording.cast`` in the trial's
    folder where that is kept, nowhere otherwise."""

    capture_screen: bool = False
    """Capture the whole screen after each turn, for rendering: ``AsyncTerminalGymEnv.screen``. Costs one ``exec``."""

    stop_timeout_sec: float = Field(default=60.0, gt=0)
    """Seconds that ``close`` gives Harbor to stop the sandbox before it gives up and raises.

    At most 64 sandboxes of an event loop stop at once, and each one's time begins with its turn.
    """

    @property
    def session(self) -> TerminalConfig:
        """The terminal's configuration with ``keys`` resolved for the action format."""
        if self.terminal.keys is not None:
            return self.terminal
        is_tool = self.action_format is ActionFormat.BASH_TOOL
        return self.terminal.model_copy(update={"keys": "literal" if is_tool else "exact"})

    @property
    def calls_mcp_tools(self) -> bool:
        """Whether messages can call the tools of a task's MCP servers."""
        return self.mcp_tools and self.action_format is ActionFormat.BASH_TOOL

    @model_validator(mode="after")
    def _require_compaction(self) -> Self:
        if self.compaction == "none" and (self.compact_at, self.max_compactions) != (None, None):
            raise ValueError("compact_at and max_compactions need a compaction: window or summary")
        if self.compaction != "summary" and not self.train_summaries:
            raise ValueError("train_summaries=False needs compaction=summary")
        return self

    @model_validator(mode="before")
    @classmethod
    def _take_from_snapshot(cls, values: Any) -> Any:
        if not isinstance(values, dict) or (start := values.get("start_from")) is None:
            return values
        kept = start if isinstance(start, Snapshot) else Path(start).resolve()  # a run may go on in another directory
        return {**dict(read_defaults(kept).config), **values, "start_from": kept}

    @model_validator(mode="after")
    def _require_a_transcript(self) -> Self:
        if not isinstance(self.start_from, Path) and (self.start_turn is not None or self.start_where):
            raise ValueError("start_turn and start_where choose among transcripts: give their folder as start_from")
        return self


class AgentEpisodeConfig(EpisodeConfig):
    """An episode of one of Harbor's agents, which asks the policy through the gateway."""

    agent: str | dict[str, Any]
    """A name of :data:`harbor_gym.gateway.agents.AGENTS`, the ``module.path:Class`` of any Harbor agent, or the fields
    of Harbor's ``AgentConfig``."""

    agent_options: dict[str, Any] = Field(default_factory=dict)
    """NAME=VALUE, an option of the agent's class; ``{gateway_url}`` is replaced with its model's address. An agent that
    is not in :data:`harbor_gym.gateway.agents.AGENTS` needs it in place of its base URL."""

    agent_in_sandbox: bool | None = None
    """Whether the agent runs in the sandbox, so that it reaches the gateway by a tunnel; None derives it from the
    agent."""

    train_segments: TrainSegments = "main"
    """Train on the agent's own conversation (``main``), also after it edited its history, or also on those of
    sub-agents and other side calls (``all``)."""

    token_source: Literal["gateway", "details"] = "gateway"
    """``gateway`` records the tokens. ``details``: the agent reports them (``rollout_details``), as Terminus-2 does,
    without a message that was cut at the sampler's token limit."""

    harbor_server: str | None = None
    """Address of a ``harbor serve`` with an inference relay (Harbor 0.26) that runs the episodes in place of this
    process; its key is the environment variable HARBOR_API_KEY. docs/scale.md says more."""

    @property
    def tokens(self) -> TrainSegments | Literal["details"]:
        """The source of the episode's tokens: segments of the gateway's record, or the agent's report."""
        return "details" if self.token_source == "details" else self.train_segments

    @override
    def __repr_args__(self) -> Generator[tuple[str | None, Any]]:
        agent = _agents_name({"agent": self.agent})
        yield from ((name, agent if name == "agent" else value) for name, value in super().__repr_args__())

    @field_validator("agent", mode="before")
    @classmethod
    def _read_agent(cls, value: Any) -> Any:
        # Harbor's class is not imported for it; by default it redacts variables, which the agent needs.
        if not isinstance(value, BaseModel):
            return value
        return value.model_dump(exclude_defaults=True, context={"redact_sensitive_env": False})

    @field_serializer("agent", when_used="json")
    def _without_secrets(self, value: str | dict[str, Any]) -> Any:
        if isinstance(value, str):
            return value
        from harbor.models.trial.config import AgentConfig

        return AgentConfig.model_validate(value).model_dump(mode="json", exclude_defaults=True)

    @model_validator(mode="after")
    def _require_fit(self) -> Self:
        if self.train_segments == "all" and self.token_source == "details":
            raise ValueError("train_segments=all needs token_source=gateway: an agent reports its own conversation")
        if self.harbor_server is not None and (
            self.verify_paths not in ("auto", "off") or self.keep_agent_processes is not None
        ):
            raise ValueError("Harbor's server grades as harbor run does, without verify_paths and keep_agent_processes")
        return self


def _validated(value: Any) -> Any:
    """Return the configuration that a mapping describes; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    values = dict(cast("Mapping[str, Any]", value))
    return (TerminalEnvConfig if values.get("agent") is None else AgentEpisodeConfig).model_validate(values)


def _own_fields(model: type[EpisodeConfig], values: dict[str, Any]) -> dict[str, Any]:
    """Return values without those of the other player's fields that only say their defaults; refuse the others."""
    is_agents = issubclass(model, AgentEpisodeConfig)
    fields = (TerminalEnvConfig if is_agents else AgentEpisodeConfig).model_fields
    foreign = [name for name in values if name in fields and name not in model.model_fields]
    if is_agents:
        why = f"for our own loop, and the agent {_agents_name(values)} plays"
    else:
        why = "for the episodes of one of Harbor's agents, and our own loop plays"
    errors = [
        InitErrorDetails(type=PydanticCustomError("other_player", "{why}", {"why": why}), loc=(name,), input=value)
        for name in foreign
        if not _says_default(fields[name], value := values[name])
    ]
    if errors:
        raise ValidationError.from_exception_data(model.__name__, errors)
    return {name: value for name, value in values.items() if name not in foreign}


def _says_default(info: FieldInfo, value: Any) -> bool:
    return value is None or value == info.get_default(call_default_factory=True, validated_data={})


def _agents_name(values: Mapping[str, Any]) -> str:
    agent = values.get("agent")
    fields: Mapping[str, Any] = agent if isinstance(agent, dict) else getattr(agent, "__dict__", {"name": agent})
    return str(fields.get("import_path") or fields.get("name"))


AnyEpisode = Annotated[TerminalEnvConfig | AgentEpisodeConfig, BeforeValidator(_validated)]
"""An episode of our own loop, or of one of Harbor's agents if ``agent`` is given."""

MaxRetries = Annotated[
    int,
    Field(ge=0, description="Retries of an episode, in a fresh sandbox, after failures of the infrastructure."),
]
NConcurrent = Annotated[int, Field(ge=1, description="Concurrent episodes.")]
DEFAULT_MAX_RETRIES, DEFAULT_N_CONCURRENT = 1, 16


def validate_episode(values: Mapping[str, Any]) -> AnyEpisode:
    """Return the configuration that fields describe; ``task_dir`` may be missing if each task will replace it.

    Raises:
        ValidationError: A field is unknown, belongs to the other player, or has an invalid value.
    """
    return _validated({"task_dir": Path(), **values})


def read_episode(values: Mapping[str, Any], where: str = "the episode") -> AnyEpisode:
    """Return the configuration that fields describe, as :func:`validate_episode` does.

    Args:
        values: Fields of :class:`TerminalEnvConfig`, or with ``agent`` those of :class:`AgentEpisodeConfig`.
        where: The fields' place, for errors.

    Raises:
        UsageError: A field is unknown, belongs to the other player, or has an invalid value.
    """
    try:
        return validate_episode(values)
    except ValidationError as exc:
        raise UsageError(f"{where} can't be used: {describe_problems(exc)}") from exc


def require_own_loop(config: EpisodeConfig, who: str) -> TerminalEnvConfig:
    """Return the configuration, if it is one of our own loop.

    Args:
        config: An episode's configuration.
        who: The caller in the error's text.

    Raises:
        UsageError: One of Harbor's agents plays.
    """
    if not isinstance(config, TerminalEnvConfig):
        raise UsageError(f"{who} plays in our own loop, not with one of Harbor's agents: leave agent out")
    return config


def require_one_conversation(config: EpisodeConfig, who: str) -> None:
    """Refuse a configuration whose episodes may become several conversations.

    Args:
        config: An episode's configuration.
        who: The caller, which takes one conversation an episode, in the error's text.

    Raises:
        UsageError: The configuration sets ``compaction``.
    """
    if isinstance(config, TerminalEnvConfig) and config.compaction != "none":
        raise UsageError(f"{who} takes one conversation an episode: compaction={config.compaction} is not possible")


class PoolLimits(_Config):
    """Limits on the starts of a :class:`harbor_gym.pool.WarmPool`, and the time after which it gives up."""

    max_starts_at_once: int = Field(default=8, ge=1)
    """Sandboxes that may be starting at the same time."""

    starts_per_sec: float = Field(default=20.0, gt=0)
    """Starts per second in the long run. As many as may start at once are allowed in one burst."""

    max_failures: int = Field(default=3, ge=1)
    """Failures in a row after which a waiting lease raises and no further sandboxes are prepared. Concurrent starts
    that fail count as one."""

    backoff_sec: float = Field(default=1.0, gt=0)
    """Pause in seconds after a first failure, doubled with each further one; a longer one that the provider requests
    is kept."""

    max_backoff_sec: float = Field(default=60.0, gt=0)
    """Ceiling on that doubling in seconds; not on a provider's request."""
