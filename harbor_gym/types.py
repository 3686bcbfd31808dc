"""Every public data type on one page: commands, the report of an episode, and the parts of a rollout.

In the order in which an episode meets them: :class:`Command` and :class:`ActionFormat`, :class:`EpisodeInfo` with
:class:`ResetInfo`, :class:`EndInfo` and :class:`StepResult`, :class:`ChatMessage` and :class:`ChatCodec`,
:class:`Sample`, :class:`TokenStep`, :class:`Exchange`, :class:`Compaction`, :class:`Turn`,
:class:`TokenTransition`, :class:`EndReason`, :class:`TokenSequence`, :class:`Transcript`, :class:`Rollout`.
Configuration objects are in :mod:`harbor_gym.config`, errors in :mod:`harbor_gym.errors`.
"""

import dataclasses
import math
import reprlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Required, Self, TypedDict, cast

from harbor_gym.errors import HarborGymError, SamplerError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import ReadOnly
else:

    class ReadOnly:
        """A stand-in at run time, as pydantic warns about the real one, which lets a subtype require keys (PEP 705)."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item


DEFAULT_SANDBOX = "local"
"""The default sandbox of every command and adapter: the one that needs no daemon."""

DEFAULT_MAX_TURNS = 50
"""The default limit of turns of every command and adapter, for our own loop and for agents."""


_SHORT = reprlib.Repr(maxlevel=2, maxlist=4, maxtuple=4, maxdict=4, maxstring=60, maxother=200)


class _Record:
    """A data class with thousands of tokens, of which a notebook shows the first few, and no optional field without
    content."""

    def __repr__(self) -> str:
        shown: list[str] = []
        for each in filter(lambda each: each.repr, dataclasses.fields(cast("Any", self))):
            value = getattr(self, each.name)
            is_required = each.default is each.default_factory is dataclasses.MISSING
            if is_required or not (value is None or (isinstance(value, Sized) and not len(value))):
                shown.append(f"{each.name}={_SHORT.repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Command:
    """One batch of keystrokes and how long to wait for its effect."""

    keystrokes: str
    """Text to type, as in terminus-json-plain: ``"ls\\n"``, or exactly a key name such as ``"C-c"``."""

    duration_sec: float = 1.0
    """Ceiling on the wait, in seconds. The terminal returns earlier when the command is done."""


class ActionFormat(StrEnum):
    """How a policy's messages are written. Every format is read into the same commands."""

    TERMINUS_JSON = "terminus-json-plain"
    """Terminus-2's JSON, read by Harbor's own parser."""

    TERMINUS_XML = "terminus-xml-plain"
    """Terminus-2's XML, read by Harbor's own parser."""

    BASH_TOOL = "bash-tool"
    """Calls of a tool ``bash``, as chat models write tool calls."""

    KEYSTROKES = "keystrokes"
    """The whole message is typed unchanged."""


class Severity(StrEnum):
    """How much a finding matters, the worst first."""

    ERROR = "error"
    """The task's rewards are wrong, or can be had without the work: do not train on it."""

    WARNING = "warning"
    """The task's rewards may change with time or place, or say less than they seem to."""

    NOTE = "note"
    """Worth knowing; nothing is wrong."""

    @property
    def rank(self) -> int:
        """The place among the severities; 0 is the worst."""
        return list(type(self)).index(self)


class EndReason(StrEnum):
    """Why an episode ended. ``info``, metrics and every adapter use the same words."""

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

    BATCH_DEADLINE = "batch_deadline"
    """The episode's batch reached its deadline (:class:`harbor_gym.stragglers.Stragglers`)."""

    STEP_GATE = "step_gate"
    """A multi-step task's further steps stay closed: the step's reward is below its ``min_reward``."""

    SESSION_ENDED = "session_ended"
    """The policy ended its own shell session (``exit``, ``kill -9 $$``)."""

    SANDBOX_BROKEN = "sandbox_broken"
    """The policy broke its sandbox so that nothing could be graded any more (no shell, processes that can't be
    stopped), or tests that load its files ran out of time or memory there (``ambiguous_failures``). The reward is 0:
    the policy has failed."""

    NO_TOOL_CALL = "no_tool_call"
    """The policy answered without a tool call, which the caller's loop takes for the end of its work. The episode is
    verified, and does not count as truncated."""

    PARSE_FAILURES = "parse_failures"
    """Too many messages in a row could not be read as an action."""

    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """Sandbox, terminal or verifier failed. There is no reward: mask or retry the episode."""

    DROPPED = "dropped"
    """The episode's group was complete without it, or its batch reached the deadline before the policy's first answer.
    There is no reward: leave it out."""

    @property
    def is_truncation(self) -> bool:
        """Return whether a budget cut the episode short."""
        return self in (
            EndReason.MAX_TURNS,
            EndReason.MAX_TOKENS,
            EndReason.CONTEXT_OVERFLOW,
            EndReason.TIME_LIMIT,
            EndReason.BATCH_DEADLINE,
        )


class ExecutorKind(StrEnum):
    """Which processes play episodes beside this one."""

    PROCESS = "process"
    """Processes of this machine."""

    RAY = "ray"
    """Workers on the nodes of a Ray cluster."""


ForkMode = Literal["auto", "replay", "exact"]
"""How a running episode is copied; see :meth:`harbor_gym.AsyncTerminalGymEnv.fork`."""

StartRule = Literal["mid", "uniform", "backward"]
"""Which turn of an earlier episode others begin after; see :attr:`harbor_gym.TerminalEnvConfig.start_turn`."""

TrainSegments = Literal["main", "all"]
"""Which conversations of an agent's episode are trained: its own, or those of its side calls (sub-agents) too."""


class CopyMark(TypedDict):
    """The beginning of a copy of an episode."""

    turn: int
    """Turns taken before."""

    id: str
    """A random number below 2 ** 63, which no other copy has; in the copy's sandbox, the file /run/harbor-gym-copy."""

    command: str | None
    """The ``copy_command`` that ran then; a replay of the copy repeats it, with this number."""


class Rollback(TypedDict):
    """A return of an episode to an earlier turn."""

    turn: int
    """The turn after which it went on."""

    undone: int
    """Turns that were taken back, which are in no transcript."""


class EpisodeInfo(TypedDict, total=False):
    """The ``info`` of :class:`harbor_gym.AsyncTerminalGymEnv`. Keys that don't apply to a call are absent.

    Keys that are always there after ``reset`` or at the end are required in :class:`ResetInfo` or :class:`EndInfo`.
    """

    instruction: ReadOnly[str]
    """After ``reset``, and when a multi-step task goes on to its next step: the instruction of the task or step."""

    task: str
    """The task's name."""

    sandbox: str
    """The sandbox that runs the episode, as ``TerminalEnvConfig.sandbox`` names it."""

    setup: str
    """After ``reset``, where there is a ``setup_command``: ``shared`` if it ran once for all sandboxes of its image,
    ``each_start`` if it ran in this sandbox."""

    turn: Required[int]
    """Calls of ``step`` so far in this episode."""

    parse_error: str | None
    """Why the action could not be read; nothing was executed then."""

    exit_code: int | None
    """Exit code of the last foreground command, where the shell reported one."""

    waits: tuple[str, ...]
    """The end of the wait for each command: ``prompt``, ``fullscreen``, ``tty_read``, ``deadline`` or ``ended``."""

    transport: str
    """The terminal's transport; ``mcp`` where only tools of MCP servers were called."""

    fork_mode: str
    """In a copy of another episode, after ``reset`` and when done: how the copy was made, see
    :meth:`harbor_gym.AsyncTerminalGymEnv.fork`."""

    copies: tuple[CopyMark, ...]
    """In a copy of another episode, after ``reset``: where each copy began on the way to this one, itself the last."""

    rollbacks: tuple[Rollback, ...]
    """After :meth:`harbor_gym.AsyncTerminalGymEnv.rollback`: each one so far in this episode, in order."""

    omitted_bytes: int
    """Bytes of output left out of the observation by its budget."""

    compacted: str
    """In tokens, where the next prompt is shorter than this one: how, and what was left out."""

    summary: str
    """In tokens, after an answer to the request for a summary: ``used``, or why it was not: ``empty`` or ``cut``."""

    confirmation_pending: bool
    """The policy declared the task complete and was asked to confirm."""

    end_reason: ReadOnly[EndReason]
    """When done: why."""

    breakage: str
    """With ``SANDBOX_BROKEN``: a sentence on what is broken. There is no verdict, which counts as reward 0."""

    truncated: ReadOnly[bool]
    """When done: whether a budget cut the episode short."""

    rewards: ReadOnly[dict[str, float]]
    """When done: every key of the episode's reward as Harbor reports it: the verifier's or, in a multi-step task, the
    graded steps' combined by the task's strategy (mean or final). Where a budget or the end of its shell ends an
    episode in a middle step, the later steps are graded without an action of the policy."""

    step_rewards: tuple[dict[str, float], ...]
    """When a step of a multi-step task was graded: the verifier's rewards of each step so far, in order; empty for a
    step without a verdict, because the policy broke its sandbox."""

    verifier_output: str
    """When graded, and the verifier printed something: the end of its output."""

    verifier_files: dict[str, int]
    """When graded: the files in the verifier's folder, path → size in bytes."""

    service_output: dict[str, str]
    """When done, and the task's Compose file has services beside ``main``: the end of each one's output, by name."""

    episode_reward: ReadOnly[float]
    """When done: the scalar made of ``rewards``; the rewards of the episode's transitions sum to it."""

    stopped_processes: tuple[str, ...]
    """At the end of an episode or step: names of processes of the policy that were stopped before grading, at most ten.
    ``metrics["stopped_processes"]`` is their number."""

    missing_protections: tuple[str, ...]
    """When done: the protections of the grading that the sandbox lacked, one sentence each; empty if it has all."""

    skills_dir: str
    """Where the task declares one: the sandbox's directory of skills. ``instruction`` lists them."""

    mcp_servers: tuple[dict[str, Any], ...]
    """Where the task declares any: its MCP servers as in ``task.toml``, without headers. ``instruction`` lists them or
    their tools."""

    trial_dir: Path | None
    """When done: the trial's folder if it is kept, else None."""

    metrics: Required[dict[str, float]]
    """Numbers for aggregation: ``time/sandbox_start_sec``, ``time/terminal_open_sec``, ``time/step_sec``,
    ``time/verifier_sec``, ``time/terminal_sec`` (the episode's sum), ``time/replay_sec`` (of a copy by replay),
    ``time/dump_sec`` and ``fork/dump_bytes`` (of an exact copy: the dump that it shares with the others),
    ``compactions`` (of the episode's prompts, at its end, where ``compaction`` is set) and ``summary_tokens`` (sampled
    for summaries, with ``compaction="summary"``), ``mcp/calls`` and
    ``mcp/failed`` (calls of MCP servers' tools in the episode, where it has such tools),
    ``stopped_processes`` (the policy's processes that were stopped before grading), ``oom_kills`` (where the sandbox
    reports it), ``zero_reward_on_limit`` (1 where that setting applied); with a warm pool ``pool/hit`` and
    ``pool/wait_sec``."""


class ResetInfo(EpisodeInfo, total=False):
    """The ``info`` that ``reset`` returns; see :class:`EpisodeInfo`."""

    instruction: ReadOnly[Required[str]]
    """The task's instruction."""


class EndInfo(EpisodeInfo, total=False):
    """The ``info`` of an episode that is over; see :class:`EpisodeInfo`."""

    end_reason: ReadOnly[Required[EndReason]]
    """Why the episode ended."""

    truncated: ReadOnly[Required[bool]]
    """Whether a budget cut the episode short."""

    rewards: ReadOnly[Required[dict[str, float]]]
    """Every key of the episode's reward as Harbor reports it."""

    episode_reward: ReadOnly[Required[float]]
    """The scalar made of ``rewards``; the rewards of the episode's transitions sum to it."""


class StepResult(NamedTuple):
    """The result of one ``step`` of :class:`harbor_gym.AsyncTerminalGymEnv`."""

    observation: str
    """Terminal text, or why the action could not be read."""

    reward: float
    """Reward of this transition. The transitions of an episode sum to its reward."""

    done: bool
    """Whether the episode is over."""

    info: EpisodeInfo
    """See :class:`EpisodeInfo`."""

    @property
    def end(self) -> EndInfo:
        """``info`` typed as that of a finished episode, in which more keys are required.

        Raises:
            UsageError: The episode is not over.
        """
        return _ended(self.info, self.done)


def _ended(info: EpisodeInfo, done: bool) -> EndInfo:
    if not done:
        raise UsageError("the episode is not over: read its end when done is true")
    return cast("EndInfo", info)


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
        """Return the tokens that follow ``sampled``: the rest of its end-of-message marks, ``message`` as the user's,
        and the opening of the next answer.
        """
        ...

    def text(self, sampled: Sequence[int]) -> str:
        """Return the answer in ``sampled`` as text, without thinking and end-of-message marks."""
        ...


_IDS = 1 << 31
"""Token ids are below this, in every tokenizer and every trainer's tensors."""

_LEAST_LOGPROB, _ROUNDING = -1e30, 1e-4
"""Limits of a log-probability: a finite number of 32 bits, and above 0 only as far as an engine's softmax rounds."""


@dataclass(frozen=True, repr=False)
class RoutedExperts(_Record):
    """The experts that a mixture of experts routed tokens to while it sampled, for routing replay in training (R3).

    A row is the pass over one token, after which the next one was sampled: the last sampled token has none yet.
    """

    start: int
    """Place of the first row's token among those of the prompt and the message."""

    experts: "np.ndarray[Any, Any]"
    """Integers by token, layer, and choice."""

    @property
    def end(self) -> int:
        """The place behind the last row's token."""
        return self.start + len(self.experts)

    def checked(self, *, tokens: int) -> "RoutedExperts":
        """Return the same, if it has a row for each token from ``start`` to the last but one.

        Args:
            tokens: Tokens of the prompt and the message.

        Raises:
            SamplerError: It has other rows, or no integers by token, layer and choice.
        """
        shape, kind = getattr(self.experts, "shape", ()), getattr(getattr(self.experts, "dtype", None), "kind", "")
        if len(shape) != 3 or kind not in "iu":
            raise SamplerError(f"routed experts are integers by token, layer and choice: the engine's have {shape}")
        if not 0 <= self.start <= tokens - 1 or self.end != tokens - 1:
            raise SamplerError(
                f"the engine's routed experts are those of tokens {self.start} to {self.end}, and {tokens} tokens "
                f"have them up to {tokens - 1}"
            )
        return self


@dataclass(frozen=True, repr=False)
class Sample(_Record):
    """One sampled message."""

    tokens: Sequence[int]
    """Token ids, with the stop token if the sampler returns it."""

    logprobs: Sequence[float] | None = None
    """Log-probability of each token under the sampling policy, in nats."""

    stop_reason: StopReason = "stop"
    """Why sampling stopped."""

    version: int | None = None
    """Version of the weights that sampled it, in training steps; None where the sampler does not report it."""

    queued_sec: float | None = None
    """Seconds that the prompt waited before its sampling began; None where the sampler does not report it."""

    routed_experts: RoutedExperts | None = field(default=None, compare=False)
    """Where a mixture of experts routed the prompt and the message; None where the sampler does not ask for it. It may
    begin behind the tokens whose routes an earlier message of the same conversation has."""

    def checked(self, *, max_tokens: int | None = None) -> "Sample":
        """Return the sample with its numbers as ``int`` and ``float``, if they can be trained on.

        Args:
            max_tokens: The most tokens that were asked for; None is no limit.

        Raises:
            SamplerError: The message ended in another way than those of ``stop_reason``, there are too many tokens, one
                of them is no token id, or its log-probability is missing, no number, not finite or positive. The
                error's text has its position, counted from 0.
        """
        if self.stop_reason not in ("stop", "length"):
            raise SamplerError(
                f"the engine ended a message with {self.stop_reason!r:.200}, which is neither stop nor length"
            )
        count = len(self.tokens)
        if max_tokens is not None and count > max_tokens:
            raise SamplerError(f"the engine sampled {count} tokens, and {max_tokens} were asked for")
        for place, token in enumerate(self.tokens):
            if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= token < _IDS:
                raise SamplerError(f"the engine's token {place} of {count} is no token id: {token!r:.60}")
        tokens = [int(token) for token in self.tokens]
        if self.logprobs is None:
            return replace(self, tokens=tokens)
        if len(self.logprobs) != count:
            raise SamplerError(f"the engine returned no log-probability for each of {count} tokens")
        for place, value in enumerate(self.logprobs):
            if isinstance(value, bool) or not isinstance(value, Real) or not _LEAST_LOGPROB <= value <= _ROUNDING:
                raise SamplerError(f"the engine's log-probability {place} of {count} is none: {value!r:.60}")
        return replace(self, tokens=tokens, logprobs=[float(value) for value in self.logprobs])


Sampler = Callable[[Sequence[int]], Awaitable[Sample]]
"""Samples one message for a prompt given as token ids."""


@dataclass(frozen=True, repr=False)
class TokenStep(_Record):
    """The result of one sampled message."""

    observation: list[int]
    """Token ids of the whole next prompt; empty when done. It begins with the last prompt and the sampled tokens, but
    after a compaction (``info["compacted"]``)."""

    reward: float
    """Reward of this step."""

    done: bool
    """Whether the episode is over."""

    info: EpisodeInfo
    """See :class:`EpisodeInfo`."""

    @property
    def end(self) -> EndInfo:
        """As :attr:`StepResult.end`."""
        return _ended(self.info, self.done)


class Exchange(NamedTuple):
    """An answer in a prompt, and what was shown after it; lengths in tokens."""

    turn: int
    """The answer's turn, from 1."""

    sampled: int
    """Length of the answer."""

    shown: int
    """Length of what stands between it and the next answer."""

    @property
    def size(self) -> int:
        """The length of both."""
        return self.sampled + self.shown


@dataclass(frozen=True, repr=False)
class Compaction(_Record):
    """The end of a conversation whose episode goes on in a shorter one; see ``TerminalEnvConfig.compaction``."""

    kind: str
    """``window`` or ``summary``."""

    tokens: Sequence[int]
    """Token ids of the conversation that ended: the turn's prompt and its answer; with ``summary``, also the request
    and the summary."""

    exchanges: tuple[Exchange, ...]
    """What the next turn's prompt has after its first message."""


@dataclass(frozen=True, repr=False)
class Summary(_Record):
    """An answer to the request for a summary, which is no turn; see ``TerminalEnvConfig.compaction``."""

    text: str
    """The summary, without thinking."""

    request: Sequence[int]
    """The token ids between the turn's answer and the summary."""

    tokens: Sequence[int]
    """The sampled token ids."""

    stop_reason: StopReason = "stop"
    """See :attr:`Sample.stop_reason`."""

    logprobs: Sequence[float] | None = None
    """As :attr:`Turn.logprobs`."""

    version: int | None = None
    """As :attr:`Turn.version`."""

    thinking_sec: float | None = None
    """As :attr:`Turn.thinking_sec`."""

    queued_sec: float | None = None
    """As :attr:`Turn.queued_sec`."""

    @property
    def state(self) -> str:
        """``used``, or why it was not: ``empty`` or ``cut`` (at the token limit)."""
        if self.stop_reason == "length":
            return "cut"
        return "used" if self.text else "empty"


@dataclass(frozen=True, repr=False)
class Turn(_Record):
    """One turn as text, for transcripts."""

    observation: str
    """The text that was new to the model before it answered."""

    action: str
    """The model's answer."""

    info: EpisodeInfo
    """The environment's info of this turn."""

    reward: float
    """The reward of this turn."""

    prompt_tokens: int = 0
    """Length of the prompt that was answered, in tokens."""

    sampled_tokens: int = 0
    """Length of the answer, in tokens."""

    logprobs: Sequence[float] | None = None
    """Log-probability of each sampled token under the sampling policy, in nats, where it is known."""

    version: int | None = None
    """Version of the weights that sampled the answer, where it is known."""

    thinking_sec: float | None = None
    """Seconds from showing the observation to receiving the answer."""

    queued_sec: float | None = None
    """Seconds of these that the prompt waited before its sampling began, where it is known."""

    commands: Sequence[Command] | None = None
    """The commands, where ``step`` was given these instead of a message."""

    summaries: tuple[Summary, ...] = ()
    """What the policy answered after this turn when it was asked for a summary; the last one was used, where
    ``compaction`` is of the kind ``summary``."""

    compaction: Compaction | None = None
    """Set where the next turn's prompt does not extend this one's, but was made shorter."""

    routed_experts: RoutedExperts | None = field(default=None, compare=False)
    """As :attr:`Sample.routed_experts`; a transcript has them in a file beside it."""


# -- rollouts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class TokenTransition(_Record):
    """One prompt and the message sampled for it."""

    prompt: Sequence[int]
    """The whole prompt, token ids."""

    sample: Sample
    """The message that the policy sampled for it."""

    reward: float
    """The reward of this turn."""

    info: EpisodeInfo
    """The environment's info of this turn."""


class TokenRole(IntEnum):
    """The role of a token in a training sequence."""

    PROMPT = 0
    """It was shown before the first sampled token."""

    OBSERVATION = 1
    """It was shown after the first sampled token."""

    SAMPLED = 2
    """The policy sampled it."""


@dataclass(frozen=True)
class SampledSpan:
    """The tokens of one call of the model in a training sequence."""

    start: int
    """Index of the first token in ``completion``."""

    end: int
    """Index after the last token."""

    call: int = field(default=0, compare=False)
    """Index of the model's call, from 0: an episode's turn, or a session's answered call."""

    agent: int = field(default=0, compare=False)
    """The conversation that made the call: 0 is the agent's own, 1 and up are its sub-agents and side calls, numbered
    in the order of their first calls."""

    version: int | None = field(default=None, compare=False)
    """Version of the weights that sampled them, as :attr:`Sample.version`."""

    is_trained: bool = True
    """Whether the tokens are trained."""

    is_summary: bool = field(default=False, compare=False)
    """Whether they answer the request for a summary, see ``TerminalEnvConfig.compaction``."""


@dataclass(frozen=True, repr=False)
class TokenSequence(_Record):
    """One training sequence. The prompt is never trained.

    ``completion``, ``mask`` and ``logprobs`` have the completion's length. ``token_ids``, ``token_roles``,
    ``token_mask`` and ``token_logprobs`` have the length of the whole.
    """

    prompt: list[int]
    """The first prompt, token ids."""

    completion: list[int]
    """Token ids after the prompt: sampled tokens, and those that each further prompt adds."""

    spans: tuple[SampledSpan, ...]
    """Where the sampled tokens are, in order. A token is sampled in one sequence only: where a conversation forks, the
    second branch has the common part in its prompt."""

    logprobs: list[float]
    """Log-probability of each sampled token, in nats; NaN where the sampler returned none, 0.0 for other tokens."""

    routed_experts: RoutedExperts | None = field(default=None, compare=False)
    """Where a mixture of experts routed the tokens of ``token_ids`` but the last, each as it was when the message after
    it was sampled; None where a message has no :attr:`Sample.routed_experts`."""

    @property
    def token_ids(self) -> list[int]:
        """The prompt and the completion."""
        return [*self.prompt, *self.completion]

    @property
    def token_mask(self) -> list[int]:
        """1 for a token of ``token_ids`` that is trained, 0 for any other."""
        return [*[0] * len(self.prompt), *self.mask]

    @property
    def token_logprobs(self) -> list[float]:
        """``logprobs`` for each of ``token_ids``: 0.0 for the prompt's."""
        return [*[0.0] * len(self.prompt), *self.logprobs]

    @property
    def token_roles(self) -> list[TokenRole]:
        """The role of each of ``token_ids``."""
        behind = self._behind(TokenRole.OBSERVATION, lambda span: TokenRole.SAMPLED)
        return [*[TokenRole.PROMPT] * len(self.prompt), *behind]

    @property
    def mask(self) -> list[int]:
        """1 for a token of ``completion`` that is trained, 0 for any other."""
        return self._behind(0, lambda span: int(span.is_trained))

    @property
    def calls(self) -> tuple[int, ...]:
        """Indices of the model's calls whose samples are in the sequence."""
        return tuple(span.call for span in self.spans)

    def filled(self, token: int) -> Self:
        """Return the sequence with ``token``, untrained, in place of an empty completion, which trainers may refuse."""
        if self.completion:
            return self
        return replace(self, prompt=self.prompt or [token], completion=[token], spans=(), logprobs=[0.0])

    def masked(self, *, older_than: int | None = None) -> Self:
        """Return the sequence with fewer tokens to train.

        Args:
            older_than: Train no token that an older version of the weights sampled; tokens of an unknown version stay
                as they are. None trains no token at all.
        """

        def is_trained(span: SampledSpan) -> bool:
            return span.is_trained and older_than is not None and (span.version is None or span.version >= older_than)

        return replace(self, spans=tuple(replace(span, is_trained=is_trained(span)) for span in self.spans))

    def _behind[T](self, shown: T, sampled: Callable[[SampledSpan], T]) -> list[T]:
        values = [shown] * len(self.completion)
        for span in self.spans:
            values[span.start : span.end] = [sampled(span)] * (span.end - span.start)
        return values


@dataclass(repr=False)
class Transcript(_Record):
    """An episode as text, growing turn by turn."""

    turns: list[Turn] = field(default_factory=list)
    final_observation: str = ""
    started: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    system_prompt: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools that one of Harbor's agents declared, as chat completions have them."""

    start_info: EpisodeInfo | None = None
    """The info of ``reset``; None where it failed."""

    settings: Mapping[str, Any] | None = None
    """The environment's configuration as JSON has it, where it is known."""

    cut: tuple[float, EpisodeInfo] | None = None
    """Reward and info of an end that followed no answer: the next prompt did not fit."""

    tokens: Sequence[int] | None = None
    """Token ids of the last prompt, and of its answer once that has ended the episode, where a token policy played.
    Each turn's prompt is a prefix of it, but those before a compaction, see
    :func:`harbor_gym.transcripts.conversations`."""

    is_traced: bool = field(default=False, repr=False, compare=False)
    """Whether a trace of the episode was sent."""

    @property
    def reward(self) -> float:
        """The sum of the transitions' rewards."""
        return math.fsum([*(turn.reward for turn in self.turns), self.cut[0] if self.cut is not None else 0.0])

    @property
    def last_info(self) -> EpisodeInfo | None:
        """The last transition's info; None where there was none."""
        if self.cut is not None:
            return self.cut[1]
        return self.turns[-1].info if self.turns else None

    @property
    def infos(self) -> list[EpisodeInfo]:
        """Every info: that of the start, of each turn, and of an end that followed no answer."""
        start = [] if self.start_info is None else [self.start_info]
        return [*start, *(turn.info for turn in self.turns), *([] if self.cut is None else [self.cut[1]])]


@dataclass(frozen=True, kw_only=True, repr=False)
class Rollout(_Record):
    """A finished episode, by any player. With an infrastructure error there is no reward: mask or retry it."""

    end_reason: EndReason
    """Why the episode ended."""

    reward: float | None
    """The episode's reward; None without a verdict, which is not 0: leave such a rollout out of training."""

    error: HarborGymError | None = None
    """Why there is no reward."""

    transitions: Sequence[TokenTransition] = ()
    """From :func:`harbor_gym.run_episode`: one per turn. Each prompt begins with the last prompt and its sample, but
    the first one after a compaction, where :func:`harbor_gym.merge` begins a new sequence."""

    segments: Sequence[TokenSequence] = ()
    """From :class:`harbor_gym.adapters.harbor.RolloutInterface`: the policy's training sequences; one, unless a prompt
    did not extend the last one token by token, or side calls are trained. :func:`harbor_gym.flatten` makes one of
    ``transitions``."""

    messages: Sequence[dict[str, Any]] = ()
    """From a chat policy: the whole chat, with the last answer."""

    transcript: Transcript = field(default_factory=Transcript)
    """The episode as text."""

    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers for aggregation over the whole episode, where its player makes any."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Every key of the episode's reward, see :class:`EpisodeInfo`. Empty without a verdict."""

    step_rewards: Sequence[Mapping[str, float]] = ()
    """In a multi-step task, the verifier's rewards of each step."""

    missing_protections: Sequence[str] = ()
    """The protections of the grading that the sandbox lacked, one sentence each; empty if it has all."""

    failed_attempts: Sequence[HarborGymError] = ()
    """Errors of earlier attempts, which ran again in a fresh sandbox."""

    task_name: str = ""
    """Name of the task's directory, where the player was given several tasks."""

    trial_name: str = ""
    """Name of the trial, unique among rollouts."""

    trial_dir: Path | None = None
    """The trial's folder, if it is kept."""

    @classmethod
    def ended(cls, info: EpisodeInfo, reward: float, **fields: Any) -> Self:
        """Return an episode that was verified.

        Args:
            info: The environment's info of the last transition.
            reward: The episode's reward.
            fields: Further fields of the rollout.
        """
        return cls(
            end_reason=info.get("end_reason", EndReason.COMPLETED),
            reward=reward,
            rewards=info.get("rewards", {}),
            step_rewards=info.get("step_rewards", ()),
            missing_protections=info.get("missing_protections", ()),
            trial_dir=info.get("trial_dir"),
            **fields,
        )

    @classmethod
    def lost(cls, error: HarborGymError, **fields: Any) -> Self:
        """Return an episode that the infrastructure lost."""
        reason = EndReason.INFRASTRUCTURE_ERROR
        return cls(end_reason=reason, reward=None, error=error, trial_dir=error.trial_dir, **fields)

    @property
    def is_lost(self) -> bool:
        """Whether there is no verdict."""
        return self.reward is None

    @property
    def turns(self) -> Sequence[Turn]:
        """The episode as text, turn by turn."""
        return self.transcript.turns

    @property
    def main(self) -> TokenSequence:
        """The agent's own segment with the most trained tokens; an empty one where there is none."""
        own = [segment for segment in self.segments if not any(span.agent for span in segment.spans)]
        return max(own, key=lambda segment: sum(segment.mask), default=TokenSequence([], [], (), []))
