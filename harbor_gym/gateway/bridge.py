"""The bridge rule: a request that extends an answered one is never rendered again.

Its prompt is the earlier prompt, the sampled tokens and the tokens that the codec appends for the new messages. All
answered calls of a session can be extended, not only the last one, so that sub-agents and repeated requests work.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harbor_gym.gateway.chat import (
    ChatRequest,
    Message,
    ParsedAnswer,
    extend_digest,
    tools_digest,
    with_canonical_ids,
)
from harbor_gym.gateway.records import BreakReason, CallRecord

_MESSAGE_CHARACTERS = 512
"""Memory that a stored message takes beyond its text, for its digests, counted in characters."""


@dataclass(frozen=True, slots=True)
class Match:
    """The source of a request's prompt."""

    parent: CallRecord | None
    """The call that the request extends; None if the prompt must be rendered."""

    messages: tuple[Message, ...]
    """Messages that follow the parent's answer; the whole conversation without a parent."""

    history: tuple[Message, ...]
    """The whole conversation, its ids canonical and without reasoning."""

    break_reason: BreakReason | None
    """Why no call is extended although the session had a conversation of the same head; None in other cases."""

    digests: tuple[bytes, ...]
    """Digest of every prefix of the request's messages."""

    head: bytes
    """Digest of the leading system messages and the tools; the earlier call's if only the tools changed."""

    tools: bytes
    """Digest of the tools."""

    @property
    def kept_messages(self) -> tuple[Message, ...]:
        """:attr:`messages` as stored: without reasoning, as the same objects as in earlier conversations."""
        return self.history[len(self.history) - len(self.messages) :]


class Bridge:
    """The answered calls of one session, indexed by their conversations."""

    def __init__(self) -> None:
        self._calls: dict[tuple[bytes, bytes, bool], CallRecord] = {}
        self._by_history: dict[tuple[bytes, bool], CallRecord] = {}
        self._prefixes: set[tuple[bytes, bool]] = set()
        self._heads: set[tuple[bytes, bool]] = set()
        self._continued: set[tuple[bytes, bool]] = set()
        self._steps: dict[tuple[bytes, Message], tuple[bytes, Message]] = {}
        """Digest of a prefix with its last message, by the digest before and that message: computed and kept once."""
        self.kept_characters = 0
        """Characters of text in memory; shared prefixes count once."""

    def match(self, request: ChatRequest, *, is_policy_model: bool) -> Match:
        """Find the longest answered conversation that the request extends, if there is one."""
        messages = with_canonical_ids(request.messages)
        history, digests = self._steps_of(messages)
        tools = tools_digest(request.tools)
        leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
        head = hashlib.sha256(digests[leading] + tools).digest()
        reason: BreakReason | None = None
        for length in range(len(messages), 0, -1):
            found = self._by_history.get((digests[length], is_policy_model))
            if found is None:
                continue
            following = messages[length:]
            same_tools = self._calls.get((digests[length], tools, is_policy_model))
            if any(message.role == "assistant" for message in following):
                was_continued = (digests[length], is_policy_model) in self._continued
                reason = BreakReason.HISTORY_EDITED if was_continued else BreakReason.FOREIGN_ANSWER
            elif same_tools is None:
                head, reason = found.head, BreakReason.TOOLS_CHANGED
            else:
                return Match(same_tools, following, history, None, digests, same_tools.head, tools)
            break
        if reason is None:
            reason = self._break_reason(messages, digests, head, is_policy_model)
        return Match(None, messages, history, reason, digests, head, tools)

    def _steps_of(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[bytes, ...]]:
        """Return the messages as stored, and a digest of every prefix, the empty one first.

        Equal digests mean equal normal forms. The ids must be canonical.
        """
        history, digests = list[Message](), [b""]
        for message in messages:
            bare = replace(message, reasoning="") if message.reasoning else message
            known = self._steps.get((digests[-1], bare))
            digest, kept = known or (extend_digest(digests[-1], bare), bare)
            digests.append(digest)
            history.append(kept)
        return tuple(history), tuple(digests)

    def add(self, call: CallRecord, match: Match, answer: ParsedAnswer) -> None:
        """Let later requests extend ``call``."""
        position = len(match.digests) - 1
        reply = Message("assistant", answer.content, answer.tool_calls)
        history = extend_digest(match.digests[-1], _with_position(reply, position))
        own = call.is_policy_model
        # Only answered requests are stored: budgets bound them, and others must not fill memory.
        for before, message, after in zip(match.digests, match.history, match.digests[1:], strict=False):
            if (before, message) not in self._steps:
                self._steps[before, message] = after, message
                self.kept_characters += _MESSAGE_CHARACTERS + _characters(message)
        self._calls[history, match.tools, own] = call
        self._by_history[history, own] = call
        self._continued.update((digest, own) for digest in match.digests[:-1])
        self._prefixes.update((digest, own) for digest in (*match.digests, history))
        self._heads.add((match.head, own))

    def _break_reason(
        self, messages: Sequence[Message], digests: Sequence[bytes], head: bytes, is_policy_model: bool
    ) -> BreakReason | None:
        if (head, is_policy_model) not in self._heads:
            return None
        common = max(length for length in range(len(digests)) if self._is_known(digests[length], is_policy_model))
        if common == len(messages):
            return BreakReason.RETRIED
        talked = any(message.role != "system" for message in messages[:common])
        return BreakReason.HISTORY_EDITED if talked else BreakReason.NEW_CONVERSATION

    def _is_known(self, digest: bytes, is_policy_model: bool) -> bool:
        return not digest or (digest, is_policy_model) in self._prefixes


def _characters(message: Message) -> int:
    return len(message.content) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)


def _with_position(message: Message, position: int) -> Message:
    """Return an answer with the ids that it has at ``position`` of a later request."""
    return with_canonical_ids([*[Message("user", "")] * position, message])[-1]
