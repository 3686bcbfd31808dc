"""Every public data type on one page: commands, what an episode reports, and what a rollout is made of.

In the order in which an episode meets them: :class:`Command` and :class:`ActionFormat`, :class:`EpisodeInfo` and
:class:`StepResult`, :class:`ChatMessage` and :class:`ChatCodec`, :class:`Sample`, :class:`TokenStep`, :class:`Turn`,
:class:`TokenTransition`, :class:`EndReason`, :class:`Rollout`, :class:`TokenSequence`. Configuration objects are in
:mod:`harbor_gym.config`, errors in :mod:`harbor_gym.errors`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Required, TypedDict

from harbor_gym.errors import HarborGymError

DEFAULT_SANDBOX = "local"
"""The sandbox where none is named, in every command and adapter: the one that needs no daemon."""


@dataclass(frozen=True, slots=True)
class Command:
    """One batch of keystrokes and how long to wait for its effect."""

    keystrokes: str
    """Text to type, as terminus-json-plain has it: ``"ls\\n"``, or exactly a key name such as ``"C-c"``."""

    duration_sec: float = 1.0
    """Ceiling on the wait, in seconds. The terminal returns earlier when the command is done."""


class ActionFormat(StrEnum):
    """How a policy's messages are written. Whatever the format, the same commands are behind it."""

    TERMINUS_JSON = "terminus-json-plain"
    """Terminus-2's JSON, read by Harbor's own parser."""

    TERMINUS_XML = "terminus-xml-plain"
    """Terminus-2's XML, read by Harbor's own parser."""

    BASH_TOOL = "bash-tool"
    """Calls of a tool ``bash``, as chat models write tool calls."""

    KEYSTROKES = "keystrokes"
    """The whole message is typed as it stands."""


class EndReason(StrEnum):
    """Why an episode ended. The same words stand in ``info``, in metrics and in every adapter."""

    COMPLETED = "completed"
    """The policy declared the task complete."""

    MAX_TURNS = "max_turns"
    """The turn budget ran out."""

    MAX_TOKENS = "max_tokens"
    """A sampled message was cut by the sampler's token limit."""

    CONTEXT_OVERFLOW = "context_overflow"
    """The next observation and a full answer would not fit the context window."""

    TIME_LIMIT = "time_limit"
    """The episode's environment time ran out."""

    STEP_GATE = "step_gate"
    """A multi-step task's further steps stay closed: the step's reward is below its ``min_reward``."""

    SESSION_ENDED = "session_ended"
    """The policy ended its own shell session (``exit``, ``kill -9 $$``)."""

    SANDBOX_BROKEN = "sandbox_broken"
    """The policy broke its sandbox so that nothing could be graded any more (no shell, processes that can't be
    stopped), or tests that load what it made ran out of time or memory there (``ambiguous_failures``). The reward is 0:
    the policy has failed."""

    NO_TOOL_CALL = "no_tool_call"
    """The policy answered without a tool call, which the caller's loop takes for the end of its work. The episode is
    verified as it stands, and is no truncation."""

    PARSE_FAILURES = "parse_failures"
    """Too many messages in a row could not be read as an action."""

    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """Sandbox, terminal or verifier failed. There is no reward: mask or retry the episode."""

    @property
    def is_truncation(self) -> bool:
        """Return whether a budget of ours cut the episode short."""
        return self in (
            EndReason.MAX_TURNS,
            EndReason.MAX_TOKENS,
            EndReason.CONTEXT_OVERFLOW,
            EndReason.TIME_LIMIT,
        )


class ExecutorKind(StrEnum):
    """Which processes play episodes beside this one."""

    PROCESS = "process"
    """Processes of this machine."""

    RAY = "ray"
    """Workers on the nodes of a Ray cluster."""


class EpisodeInfo(TypedDict, total=False):
    """The ``info`` of :class:`harbor_gym.AsyncTerminalGymEnv`. Keys that don't apply to a call are absent."""

    instruction: str
    """After ``reset``, and when a multi-step task goes on to its next step: what is to be done."""

    task: str
    """The task's name."""

    sandbox: str
    """The sandbox that runs the episode, as ``TerminalEnvConfig.sandbox`` names it."""

    image_substitutions: tuple[str, ...]
    """Base images that were not available and what stood in for them, one sentence each; empty is as it should be."""

    setup: str
    """After ``reset``, where there is a ``setup_command``: ``shared``, it ran once for all sandboxes of its image; or
    ``each_start``, it ran in this sandbox."""

    turn: Required[int]
    """Calls of ``step`` so far in this episode."""

    parse_error: str | None
    """Why the action could not be read; nothing was executed then."""

    exit_code: int | None
    """Exit code of the last foreground command, where the shell reported one."""

    waits: tuple[str, ...]
    """What ended the wait for each command: ``prompt``, ``fullscreen``, ``tty_read``, ``deadline`` or ``ended``."""

    transport: str
    """How the terminal was reached."""

    omitted_bytes: int
    """Bytes of output left out of the observation by its budget."""

    confirmation_pending: bool
    """The policy declared the task complete and was asked to confirm."""

    end_reason: EndReason
    """When done: why."""

    breakage: str
    """With ``SANDBOX_BROKEN``: what was found, in words. There is no verdict on what was left, which counts as 0."""

    truncated: bool
    """When done: whether a budget of ours cut the episode short."""

    rewards: dict[str, float]
    """When done: every key of the episode's reward as Harbor reports it: what the verifier wrote, of a multi-step task
    what its own strategy (mean or final) makes of the steps that were graded. An episode that a budget cuts in a middle
    step is reported as Harbor reports one that a ``min_reward`` gate stopped there: the steps behind it don't count."""

    step_rewards: tuple[dict[str, float], ...]
    """When a step of a multi-step task was graded: what the verifier wrote of each step so far, in order. An empty one
    is of a step that has no verdict, because the policy broke its sandbox."""

    verifier_output: str
    """When graded, and the verifier printed something: the end of it."""

    verifier_files: dict[str, int]
    """When graded: the files in the verifier's folder, path → size in bytes."""

    episode_reward: float
    """When done: the scalar of ``rewards``, to which the rewards of the episode's transitions sum."""

    missing_protections: tuple[str, ...]
    """When done: what the sandbox could not give to the grading, one sentence each; empty is as it should be."""

    skills_dir: str
    """Where the task declares one: the sandbox's directory of skills. ``instruction`` lists them."""

    mcp_servers: tuple[dict[str, Any], ...]
    """Where the task declares any: its MCP servers, as ``task.toml`` has them. ``instruction`` lists them."""

    trial_dir: Path | None
    """When done: the trial's folder if it is kept, else None."""

    metrics: Required[dict[str, float]]
    """Numbers for aggregation: ``time/sandbox_start_sec``, ``time/terminal_open_sec``, ``time/step_sec``,
    ``time/verifier_sec``, ``time/terminal_sec`` (the episode's sum), ``stopped_processes`` (the policy's that ran on
    and were stopped before grading), ``oom_kills`` (where the sandbox reports it); with a warm pool ``pool/hit`` and
    ``pool/wait_sec``."""


class StepResult(NamedTuple):
    """What one ``step`` of :class:`harbor_gym.AsyncTerminalGymEnv` returns."""

    observation: str
    """Terminal text, or why the action could not be read."""

    reward: float
    """What this transition is paid. The transitions of an episode sum to its reward."""

    done: bool
    """Whether the episode is over."""

    info: EpisodeInfo
    """See :class:`EpisodeInfo`."""


# -- chats and tokens ------------------------------------------------------------------------------------------------

StopReason = Literal["stop", "length"]
"""Why the sampler stopped: at a stop sequence, or at its token limit."""


class ChatMessage(TypedDict):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatCodec(Protocol):
    """How one model family writes a chat as tokens. :class:`harbor_gym.HFCodec` is one for any chat template."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens that precede the model's first answer."""
        ...

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        """Return the tokens that follow ``sampled``: what is missing of its end, ``message`` as the user's, and the
        opening of the next answer.
        """
        ...

    def text(self, sampled: Sequence[int]) -> str:
        """Return the answer that ``sampled`` holds, without thinking and end-of-message marks."""
        ...


@dataclass(frozen=True)
class Sample:
    """One sampled message."""

    tokens: Sequence[int]
    """Token ids, with the stop token if the sampler returns it."""

    logprobs: Sequence[float] | None = None
    """Log-probability of each token under the sampling policy, in nats."""

    stop_reason: StopReason = "stop"
    """Why sampling stopped."""


Sampler = Callable[[Sequence[int]], Awaitable[Sample]]
"""Samples one message for a prompt given as token ids."""


@dataclass(frozen=True)
class TokenStep:
    """What one sampled message led to."""

    observation: list[int]
    """The next prompt, whole. It begins with the last prompt and the sampled tokens. Empty when done."""

    reward: float
    """Reward of this step."""

    done: bool
    """Whether the episode is over."""

    info: EpisodeInfo
    """See :class:`EpisodeInfo`."""


@dataclass(frozen=True)
class Turn:
    """One turn as text, for transcripts."""

    observation: str
    """What the model was newly shown before it answered."""

    action: str
    """What it answered."""

    info: EpisodeInfo
    """What came of it."""

    reward: float
    """The reward of this turn."""

    prompt_tokens: int = 0
    """Length of the prompt that was answered, in tokens."""

    sampled_tokens: int = 0
    """Length of the answer, in tokens."""

    logprobs: Sequence[float] | None = None
    """Log-probability of each sampled token under the sampling policy, in nats, where it is known."""

    thinking_sec: float | None = None
    """Seconds from showing the observation to receiving the answer."""


# -- rollouts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenTransition:
    """One prompt and what was sampled for it."""

    prompt: Sequence[int]
    """The whole prompt, token ids."""

    sample: Sample
    """What the policy sampled for it."""

    reward: float
    """The reward of this turn."""

    info: EpisodeInfo
    """The environment's info of this turn."""


@dataclass(frozen=True)
class Rollout:
    """A finished episode. With an infrastructure error there is no reward: mask or retry it."""

    transitions: Sequence[TokenTransition]
    """One per turn, in order. Each prompt begins with the last prompt and its sample."""

    end_reason: EndReason
    """Why the episode ended."""

    reward: float | None
    """The episode's reward; None after an infrastructure error."""

    error: HarborGymError | None = None
    """The infrastructure error, if that ended the episode."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Every key of the episode's reward, see :class:`EpisodeInfo`. Empty without a verdict."""

    step_rewards: Sequence[Mapping[str, float]] = ()
    """Of a multi-step task, what the verifier wrote of each step."""

    failed_attempts: Sequence[HarborGymError] = ()
    """Errors of earlier attempts, which ran again in a fresh sandbox."""


@dataclass(frozen=True)
class TokenSequence:
    """One training sequence. ``completion``, ``mask`` and ``logprobs`` have one length."""

    prompt: list[int]
    """The first prompt, token ids."""

    completion: list[int]
    """Everything behind it: sampled tokens, and what each further prompt adds."""

    mask: list[int]
    """1 for a token that the policy sampled, 0 for one that it was shown."""

    logprobs: list[float]
    """Log-probability of each sampled token, in nats; NaN where the sampler returned none, 0.0 where the mask is 0."""
