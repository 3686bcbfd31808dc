"""The record of a session: calls as a tree, and the training sequences read from it."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harbor_gym.formats.tool_text import write_calls
from harbor_gym.gateway.chat import Message, ParsedAnswer
from harbor_gym.gateway.prompts import KeptTokens
from harbor_gym.sequences import SequenceBuilder
from harbor_gym.types import EpisodeInfo, StopReason, TokenSequence, Turn


class BreakReason(StrEnum):
    """Why a call's prompt was rendered anew although the session already had a conversation of the same head."""

    NEW_CONVERSATION = "new_conversation"
    """No user message in common with an earlier call: a fresh conversation, or a compacted one."""

    HISTORY_EDITED = "history_edited"
    """It begins like an earlier conversation, and then differs from it."""

    TOOLS_CHANGED = "tools_changed"
    """The messages extend an earlier answer, but with other tools."""

    FOREIGN_ANSWER = "foreign_answer"
    """The messages extend an earlier answer, but contain an assistant message that was not sampled here."""

    RETRIED = "retried"
    """The request equals an earlier one whose prompt was not bridged either. The same prompt is rendered."""


class CallKind(StrEnum):
    """The role of a call in its episode."""

    MAIN = "main"
    """The agent's own conversation, also after it edited its history. Trained."""

    SIDE = "side"
    """Another model name, system prompt or tool set than the main conversation's (titles, sub-agents): not trained by
    default."""

    ABANDONED = "abandoned"
    """Its answer was not used: the client repeated the request, or was gone when the answer came. Not trained by
    default."""


@dataclass(frozen=True, slots=True, eq=False)
class CallRecord:
    """One answered request."""

    index: int
    """Position among the session's calls, from 0."""

    parent: "CallRecord | None"
    """The call whose answer this one's prompt extends; None if the prompt was rendered anew."""

    prompt_suffix: KeptTokens
    """The prompt's tokens after the parent's prompt and sample; the whole prompt without a parent."""

    sampled: tuple[int, ...]
    """The sampled tokens."""

    logprobs: tuple[float, ...] | None
    """Log-probability of each sampled token, in nats; None if the sampler does not return them."""

    stop_reason: StopReason
    """Why the sampler stopped."""

    version: int | None
    """Version of the weights; None if the sampler does not report it."""

    model: str
    """Model name in the request."""

    head: bytes
    """Digest of the request's leading system messages and tools."""

    request: bytes
    """Digest of the whole request."""

    has_tools: bool
    """Whether the request declared tools."""

    is_policy_model: bool
    """Whether the model name is the policy's."""

    break_reason: BreakReason | None
    """Why the prompt was rendered anew; None for a bridged call and for the first call of its head."""

    duration_sec: float
    """Seconds that the sampler took."""

    messages: tuple[Message, ...] = field(default=(), repr=False)
    """The request's messages after the parent's answer, without reasoning; all of them without a parent."""

    answer: ParsedAnswer = field(default=ParsedAnswer(""), repr=False)
    """The sampled answer as text and tool calls."""

    @property
    def prompt(self) -> list[int]:
        """The whole prompt, token ids."""
        return self._tokens(with_own_sample=False)

    @property
    def tokens(self) -> list[int]:
        """The whole prompt and the sampled tokens."""
        return self._tokens(with_own_sample=True)

    def lineage(self) -> "list[CallRecord]":
        """Return the calls from the root to this one."""
        chain: list[CallRecord] = []
        call: CallRecord | None = self
        while call is not None:
            chain.append(call)
            call = call.parent
        return chain[::-1]

    def _tokens(self, *, with_own_sample: bool) -> list[int]:
        tokens: list[int] = []
        for call in self.lineage():
            tokens += call.prompt_suffix.tolist()
            if with_own_sample or call is not self:
                tokens += call.sampled
        return tokens


@dataclass(slots=True)
class CallTree:
    """All answered calls of a session."""

    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    undelivered: set[int] = field(default_factory=set[int])
    """Indices of calls whose client was gone when the answer came."""

    def segments(self, kinds: Container[CallKind] = frozenset(CallKind)) -> tuple[TokenSequence, ...]:
        """Return the calls of these kinds as training sequences, in the order of their first calls."""
        main_head = self._main_head()
        sides = dict.fromkeys((call.model, call.head) for call in self.calls if not self._is_own(call, main_head))
        agents = {side: number for number, side in enumerate(sides, start=1)}
        return tuple(
            _sequence(chain, agents.get((chain[0].model, chain[0].head), 0))
            for chain, kind in self._chains_of(main_head)
            if kind in kinds
        )

    def chains(self) -> list[tuple[list[CallRecord], CallKind]]:
        """Return the calls of each training sequence, and their kind."""
        return self._chains_of(self._main_head())

    def _chains_of(self, main_head: bytes | None) -> list[tuple[list[CallRecord], CallKind]]:
        abandoned = self._abandoned()
        return [(chain, self._kind(chain[0], main_head, abandoned)) for chain in self._chains(abandoned)]

    def break_counts(self) -> Counter[BreakReason]:
        """Return how often a prompt was rendered anew, by reason; side calls are not counted."""
        main_head = self._main_head()
        return Counter(
            call.break_reason
            for call in self.calls
            if call.break_reason is not None and self._kind(call, main_head, set()) is CallKind.MAIN
        )

    def turns(self) -> list[Turn]:
        """Return the main conversation as text; a turn's observation is the text after the previous answer."""
        main = {call.index for chain, kind in self.chains() if kind is CallKind.MAIN for call in chain}
        calls = [call for call in self.calls if call.index in main]
        return [_turn(number, call) for number, call in enumerate(calls, start=1)]

    def _main_head(self) -> bytes | None:
        """Return the main conversation's head: the first with tools under the policy's model name, else the first."""
        own = [call for call in self.calls if call.is_policy_model]
        first = next((call for call in own if call.has_tools), own[0] if own else None)
        return None if first is None else first.head

    def _kind(self, call: CallRecord, main_head: bytes | None, abandoned: set[int]) -> CallKind:
        if call.index in abandoned:
            return CallKind.ABANDONED
        return CallKind.MAIN if self._is_own(call, main_head) else CallKind.SIDE

    @staticmethod
    def _is_own(call: CallRecord, main_head: bytes | None) -> bool:
        return call.is_policy_model and call.head == main_head

    def _abandoned(self) -> set[int]:
        """Return the indices of calls that no call extends, and that were repeated or never delivered."""
        continued = {call.parent.index for call in self.calls if call.parent is not None}
        latest = {(call.request, call.model): call.index for call in self.calls}
        # A request equal to an earlier one, if that one's answer was used, is a fork and not a repetition.
        return {
            call.index
            for call in self.calls
            if call.index not in continued
            and (call.index in self.undelivered or latest[call.request, call.model] != call.index)
        }

    def _chains(self, abandoned: set[int]) -> list[list[CallRecord]]:
        """Partition the calls into chains: a chain continues with the first used child of its last call."""
        chains: list[list[CallRecord]] = []
        chain_of: dict[int, list[CallRecord]] = {}
        for call in self.calls:
            home = None if call.parent is None else chain_of[call.parent.index]
            if home is None or home[-1] is not call.parent or call.index in abandoned:
                home = []
                chains.append(home)
            home.append(call)
            chain_of[call.index] = home
        return chains


def _sequence(chain: Sequence[CallRecord], agent: int) -> TokenSequence:
    sequence = SequenceBuilder()
    if (parent := chain[0].parent) is not None:
        sequence.show(parent.tokens)
    for call in chain:
        sequence.show(call.prompt_suffix.tolist())
        sequence.add(call.sampled, call.logprobs, call=call.index, agent=agent, version=call.version)
    return sequence.build()


def _turn(number: int, call: CallRecord) -> Turn:
    action = write_calls(call.answer.content, call.answer.tool_calls)
    info: EpisodeInfo = {"turn": number, "metrics": {"time/sampler_sec": call.duration_sec}}
    return Turn(_shown(call.messages), action, info, 0.0, len(call.prompt), len(call.sampled), version=call.version)


def _shown(messages: Sequence[Message]) -> str:
    """Return the text after the last answer, without system messages."""
    first = max((number for number, message in enumerate(messages, 1) if message.role == "assistant"), default=0)
    return "\n".join(message.content for message in messages[first:] if message.role != "system")
