"""A finished episode as a row of NeMo Gym: input, output items, and the reason for a mask."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from harbor_gym.adapters.nemo_gym.model_server import CALL, ROUTES, TOKEN_FIELDS, Item, ModelCall, as_items, without
from harbor_gym.adapters.nemo_gym.play import ANEW
from harbor_gym.errors import HarborGymError
from harbor_gym.rollout import end_word
from harbor_gym.types import EndReason, Rollout

_NEMO_KINDS = {
    "sandbox_throttled": "provider_quota_exhausted",
    "sandbox_start": "provider_unavailable",
    "sandbox_memory": "provider_oom_killed",
    "sandbox_lost": "session_lost",
    "verifier_memory": "provider_oom_killed",
    "verifier_error": "verifier_error",
}
"""Our failure kind → NeMo Gym's; the others are ``harbor_gym:KIND``."""

_MAX_REASON_CHARACTERS = 2000

_NO_ROUTE = -1
"""NeMo RL lets the model's own router choose for a token that has only these. Source: NeMo RL,
``docs/guides/router-replay.md``."""


@dataclass(frozen=True)
class Failure:
    """The failure of a row."""

    kind: str
    """One of NeMo Gym's failure kinds, or ``harbor_gym:`` and one of ours."""

    reason: str
    """A description for people."""

    is_masked: bool
    """Whether the row is masked, since it does not measure the policy or can't be trained on."""


@dataclass(frozen=True)
class Row:
    """An episode, ready for NeMo Gym's types."""

    input: list[Item]
    """The prompt of the first answer."""

    output: list[Item]
    """The answers with their token ids, and the observations between them. Never empty."""

    failure: Failure | None
    """The failure, if there was one."""

    fields: dict[str, Any]
    """Further fields of the row."""


def nemo_kind(failure_kind: str) -> str:
    """Return NeMo Gym's failure kind for one of :data:`harbor_gym.outcomes.FAILURE_KINDS`."""
    return _NEMO_KINDS.get(failure_kind, f"harbor_gym:{failure_kind}")


def make_row(
    rollout: Rollout, calls: Sequence[ModelCall], *, require_token_ids: bool, routes: tuple[int, int] | None = None
) -> Row:
    """Return an episode's row.

    A row is one training sequence: NeMo RL refuses a row whose prompts do not extend one another, or without any
    sampled token. If an agent has several conversations, such as one in each step of a task, only the one with the most
    sampled tokens keeps its ids. If that conversation is not contiguous, the items after the break lose their ids; a
    row without any ids gets one item with one token. Rows of the last two kinds are masked.

    Args:
        rollout: The episode; the answers in its ``messages`` have the number of their call.
        calls: The answered calls.
        require_token_ids: Whether the row is for training.
        routes: Layers and choices of the model server's routed experts, which the one token of a row without any ids
            then has as well: NeMo RL refuses an item without. None for a dense model.
    """
    first = next((place for place, message in enumerate(rollout.messages) if CALL in message), None)
    shown = rollout.messages[:first]
    behind = [] if first is None else rollout.messages[first:]
    output, broken_at = _output(behind, calls)
    failure = _failure(rollout, broken_at, has_sampled=first is not None)
    if failure is None and require_token_ids and not _is_trainable(output):
        failure = Failure("harbor_gym:nothing_sampled", "the policy sampled no token", is_masked=True)
    if not output or (require_token_ids and not _is_trainable(output)):
        output.append(_degenerate(routes))
    return Row(as_items(shown, calls), output, failure, _fields(rollout, failure, broken_at))


def refused_row(error: HarborGymError, *, routes: tuple[int, int] | None = None) -> Row:
    """Return the row of an episode that can't be played, which no retry repairs.

    Source: NeMo Gym 0.7.0, ``rollout_collection.py``: a result with these keys is written next to the collection's
    results, and is not retried.
    """
    row = make_row(Rollout.lost(error), (), require_token_ids=True, routes=routes)
    assert row.failure is not None
    refusal = {"attempts": 0, "_ng_failure_class": row.failure.kind, "_ng_failure_message": row.failure.reason}
    return replace(row, fields={**row.fields, **refusal, "_ng_failure_terminal": True})


def _output(messages: Sequence[dict[str, Any]], calls: Sequence[ModelCall]) -> tuple[list[Item], int | None]:
    """Return the items, and the number, from 1, of the first trained answer whose prompt does not extend the last."""
    output: list[Item] = []
    seen: list[int] = []
    broken_at, turn = None, 0
    parts = _conversations(messages)
    trained = max(parts, key=lambda part: sum(len(_sampled(message, calls)) for message in part))
    for part in parts:
        for message in part:
            if CALL not in message:
                output += as_items([message], calls)
                continue
            turn += 1
            call = calls[message[CALL]]
            if part is trained and broken_at is None and call.prompt is not None:
                if list(call.prompt[: len(seen)]) == seen:
                    seen = [*call.prompt, *call.sampled]
                else:
                    broken_at = turn
            is_kept = part is trained and broken_at is None
            output += call.items if is_kept else [without(item, *TOKEN_FIELDS, ROUTES) for item in call.items]
    return output, broken_at


def _conversations(messages: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the messages grouped by conversation."""
    parts: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message.get(ANEW):
            parts.append([])
        parts[-1].append(message)
    return parts


def _sampled(message: dict[str, Any], calls: Sequence[ModelCall]) -> Sequence[int]:
    return calls[message[CALL]].sampled if CALL in message else ()


def _failure(rollout: Rollout, broken_at: int | None, *, has_sampled: bool) -> Failure | None:
    error, reason = rollout.error, rollout.end_reason
    if error is not None:
        text = f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]
        return Failure(nemo_kind(end_word(rollout)), text, is_masked=True)
    if broken_at is not None:
        text = (
            f"the prompt of answer {broken_at} does not begin with the last prompt and its sample: the chat template "
            "rewrites earlier answers, and the engine knows no required_prefix_token_ids"
        )
        return Failure("harbor_gym:tokens_not_contiguous", text, is_masked=True)
    if reason is EndReason.CONTEXT_OVERFLOW:
        when = "a later" if has_sampled else "the first"
        text = f"the prompt of {when} answer does not fit the context window"
        return Failure("harbor_gym:context_overflow", text, is_masked=not has_sampled)
    if reason is EndReason.TIME_LIMIT:
        return Failure("agent_timeout", "the episode's time ran out; it was verified", is_masked=not has_sampled)
    if not has_sampled:
        return Failure("harbor_gym:nothing_sampled", f"it ended ({reason}) before the first answer", is_masked=True)
    return None


def _fields(rollout: Rollout, failure: Failure | None, broken_at: int | None) -> dict[str, Any]:
    is_masked = failure is not None and failure.is_masked
    diagnostics = rollout.error.diagnostics if rollout.error is not None else {}
    return {
        "reward": rollout.reward or 0.0,
        "mask_sample": is_masked,
        # NeMo RL reads the mask here.
        "instance_config": {"mask_sample": is_masked},
        "failure_kind": None if failure is None else failure.kind,
        "failure_reason": None if failure is None else failure.reason,
        "end_reason": rollout.end_reason.value,
        "turns": sum(CALL in message for message in rollout.messages),
        "conversations": len(_conversations(rollout.messages)),
        "unread_calls": int(rollout.metrics.get("gateway/unread_calls", 0)),
        "attempts": len(rollout.failed_attempts) + 1,
        "truncated": int(rollout.end_reason.is_truncation),
        "tokens_contiguous": int(broken_at is None),
        "context_length_exceeded_error": int(rollout.end_reason is EndReason.CONTEXT_OVERFLOW),
        "agent_timeout_error": int(rollout.end_reason is EndReason.TIME_LIMIT),
        "trial_dir": None if rollout.trial_dir is None else str(rollout.trial_dir),
        "verifier_output": diagnostics.get("verifier_output"),
        **{f"verifier/{name}": value for name, value in rollout.rewards.items()},
    }


def _is_trainable(output: Sequence[Item]) -> bool:
    return any(item.get("generation_token_ids") for item in output)


def _degenerate(routes: tuple[int, int] | None) -> Item:
    item: Item = {
        "type": "message",
        "id": f"msg_{uuid4().hex}",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "", "annotations": []}],
        "prompt_token_ids": [0],
        "generation_token_ids": [0],
        "generation_log_probs": [0.0],
    }
    if routes is not None:
        layers, choices = routes
        item[ROUTES] = [[[_NO_ROUTE] * choices] * layers] * 2  # of the prompt's token and the sampled one
    return item
