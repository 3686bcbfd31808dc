"""Configuration objects: frozen, without unknown fields, passed whole."""

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, field_validator, model_validator

from harbor_gym._runtime.shipped import resolve_shipped
from harbor_gym.config.snapshot import Snapshot as Snapshot
from harbor_gym.config.snapshot import read_start
from harbor_gym.config.verify_paths import VerifyPaths, check_paths
from harbor_gym.errors import UsageError
from harbor_gym.types import DEFAULT_MAX_TURNS, DEFAULT_SANDBOX, ActionFormat, ForkMode

if TYPE_CHECKING:

    class _TaskPath:
        """A path that may be given as text: a type checker takes ``__set__``'s type for the constructor's."""

        def __get__(self, instance: object, owner: object) -> Path: ...

        def __set__(self, instance: object, value: str | Path) -> None: ...

else:
    _TaskPath = Path

AmbiguousFailures = Literal["zero", "infrastructure"]
"""The treatment of a missing verdict for which either the policy or the task may be responsible."""


def describe_problems(error: ValidationError) -> str:
    """Return the names of the invalid fields and their problems, on one line."""
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False))


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


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


class TerminalEnvConfig(_Config):
    """The configuration of an :class:`harbor_gym.AsyncTerminalGymEnv`."""

    task_dir: _TaskPath
    """Harbor task directory (``task.toml``, ``instruction.md``, ``environment/``, ``tests/``), or ``task:NAME`` of one
    that is shipped with the package."""

    sandbox: str = DEFAULT_SANDBOX
    """``local``, a Harbor environment type by name (``docker``, ``daytona``, …; ``harbor-gym doctor`` lists them), or
    ``module.path:Class``."""

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the sandbox class (Harbor's ``environment.kwargs``)."""

    setup_command: str | None = Field(default=None, min_length=1)
    """Shell text that root runs before the policy starts, in the task's sandbox and with its network. Only files are
    kept: processes that it leaves running may be gone. ``local`` and ``docker`` run it once, with the image's
    environment only, and start every sandbox from the resulting files. Any other sandbox runs it at each start, and so
    does ``docker`` for a task with a Compose file, mounts or a declared volume (``info["setup"]``)."""

    terminal: TerminalConfig = TerminalConfig()
    """Pane size, waits and the observation budget."""

    action_format: ActionFormat = ActionFormat.TERMINUS_JSON
    """How the policy's messages are written; the system prompt of a chat policy follows it."""

    mcp_tools: bool = True
    """In a format with tool calls (``bash-tool``), the tools of the task's MCP servers can be called like ``bash``: the
    servers are started or reached inside the sandbox, and ``instruction`` has the schemas. False, and in every other
    format: the instruction names the servers, and the policy uses them from its shell."""

    start_from: Path | InstanceOf[Snapshot] | None = None
    """Begin each episode at the turn of a :class:`harbor_gym.Snapshot`, given itself or by its path, as ``start_mode``
    says. Its turns and terminal time count toward the budgets. Fields that are not given are the snapshot's."""

    start_mode: ForkMode = "auto"
    """How ``start_from`` is followed. ``replay``: its keystrokes are typed in the fresh sandbox, and each screen is
    compared (:class:`harbor_gym.errors.ForkDivergedError`). ``exact``: the processes and files of the snapshot's dump
    are restored; trust a dump like code of your own. ``auto``: ``exact`` if there is a dump that can be restored here,
    else ``replay``; ``info["fork_mode"]`` states which, and the log why."""

    system_prompt: str | None = Field(default=None, min_length=1)
    """The system message of a chat policy, which must then state the action format's rules. None: the action
    format's."""

    max_turns: int | None = Field(default=DEFAULT_MAX_TURNS, ge=1)
    """Turns (calls of ``step``) after which the episode is truncated and verified; None is no limit."""

    time_limit_sec: float | None = Field(default=None, gt=0)
    """Seconds of terminal time after which the episode is truncated and verified; the policy's thinking time does not
    count. None: the task's own ``[agent] timeout_sec``, if any; in a multi-step task it, or the step's own, limits each
    step, after which the next one begins, as under Harbor."""

    max_consecutive_parse_failures: int | None = Field(default=3, ge=1)
    """Unreadable actions in a row that end the episode; None is no limit."""

    confirm_task_complete: bool = True
    """Ask once for confirmation when the policy declares the task complete, as Terminus-2 does."""

    reward_key: str | None = None
    """The key of the verifier's rewards that is the scalar. None: ``reward``, or the only key."""

    reward_function: str | None = None
    """Compute the scalar from all keys instead: ``mean``, ``min``, ``max``, ``sum``, or ``module.path:function``."""

    step_rewards: bool = False
    """In a multi-step task whose reward is the mean of its steps, give each step's share of it to the transition that
    ended the step, and the rest to the last transition. False: the last transition has the whole reward. Either way the
    transitions sum to ``info["episode_reward"]``."""

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

    verifier: dict[str, Any] = Field(default_factory=dict)
    """Harbor's settings of a run's verifier: ``import_path`` and ``kwargs`` of a verifier of your own, ``env`` (write
    secrets as ``${NAME}``), ``override_timeout_sec``, ``max_timeout_sec``. A task sets its own in its task.toml."""

    harbor_server: str | None = None
    """Address of a ``harbor serve`` with an inference relay (Harbor 0.26) that runs the episodes of one of Harbor's
    agents in place of this process; its key is the environment variable HARBOR_API_KEY. docs/scale.md says more."""

    trials_dir: Path | None = None
    """Keep each trial's folder (logs, result.json) below this directory. None: a temporary one, removed at close."""

    recording_path: Path | None = None
    """Record each episode here as an asciicast, replacing the last one. None: ``recording.cast`` in the trial's
    folder where that is kept, nowhere otherwise."""

    capture_screen: bool = False
    """Capture the whole screen after each turn, for rendering: ``AsyncTerminalGymEnv.screen``. Costs one ``exec``."""

    stop_timeout_sec: float = Field(default=60.0, gt=0)
    """Seconds that ``close`` gives Harbor to stop the sandbox before it gives up and raises."""

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

    @model_validator(mode="before")
    @classmethod
    def _take_from_snapshot(cls, values: Any) -> Any:
        if not isinstance(values, dict) or (start := values.get("start_from")) is None:
            return values
        kept = start if isinstance(start, Snapshot) else Path(start).resolve()  # a run may go on in another directory
        snapshot = read_start(kept)
        return {**(dict(snapshot.config) if snapshot else {}), **values, "start_from": kept}

    @field_validator("task_dir")
    @classmethod
    def _find_shipped(cls, value: Path) -> Path:
        try:
            return resolve_shipped(value)
        except UsageError as exc:
            raise ValueError(str(exc)) from exc

    @field_validator("verify_paths")
    @classmethod
    def _require_carriable(cls, value: VerifyPaths) -> VerifyPaths:
        return check_paths(value) if isinstance(value, tuple) else value


FIELDS_WITH_AGENT = frozenset(
    {
        *("max_turns", "time_limit_sec", "reward_key", "reward_function", "zero_reward_on_limit"),
        *("verify_paths", "keep_agent_processes", "ambiguous_failures", "trials_dir", "harbor_server"),
    }
)
"""The fields of :class:`TerminalEnvConfig` that also apply to an episode of one of Harbor's agents."""

_ALWAYS = frozenset({"task_dir", "sandbox", "sandbox_options", "step_rewards"})  # such an episode is paid once anyhow


def require_fields_of_agents(config: TerminalEnvConfig) -> None:
    """Check that a configuration sets no field that an episode of one of Harbor's agents would ignore.

    Raises:
        UsageError: A field of our own loop differs from its default.
    """
    fields = TerminalEnvConfig.model_fields
    own = fields.keys() - FIELDS_WITH_AGENT - _ALWAYS
    changed = [
        name for name in sorted(own) if getattr(config, name) != fields[name].get_default(call_default_factory=True)
    ]
    if changed:
        raise UsageError(
            f"{', '.join(changed)}: for our own loop, and one of Harbor's agents plays; an agent takes "
            f"{', '.join(sorted(FIELDS_WITH_AGENT))}"
        )


def require_fields_of_own_loop(config: TerminalEnvConfig) -> None:
    """Check that a configuration sets no field that our own loop would ignore.

    Raises:
        UsageError: It names a server for the episodes of Harbor's agents.
    """
    if config.harbor_server is not None:
        raise UsageError("harbor_server runs the episodes of Harbor's agents, not our own loop: give an agent")


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
