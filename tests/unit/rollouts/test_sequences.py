"""Sequences for trainers: every sampled token once, in its place, and never beside a prompt that was not its own."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym import EndReason, Rollout, Sample, TokenTransition, UsageError, flatten, merge
from harbor_gym.sequences import split, staleness
from harbor_gym.types import RoutedExperts, TokenRole, TokenSequence

ids = st.lists(st.integers(0, 5), max_size=6)


def transition(prompt: Sequence[int], sampled: Sequence[int]) -> TokenTransition:
    return TokenTransition(
        prompt, Sample(sampled, [-float(token) for token in sampled]), 0.0, {"turn": 1, "metrics": {}}
    )


def rollout(*transitions: TokenTransition) -> Rollout:
    return Rollout(transitions=transitions, end_reason=EndReason.COMPLETED, reward=1.0)


@given(first=ids, turns=st.lists(st.tuples(ids, ids), max_size=5))
def test_a_rollout_is_its_parts_in_order(first: list[int], turns: list[tuple[list[int], list[int]]]) -> None:
    prompt, transitions = [9, *first], list[TokenTransition]()
    expected: list[tuple[int, int, float]] = []
    for number, (sampled, shown) in enumerate(turns):
        transitions.append(transition(list(prompt), sampled))
        expected += [(token, 1, -float(token)) for token in sampled]
        prompt += sampled + shown
        if number < len(turns) - 1:
            expected += [(token, 0, 0.0) for token in shown]
    sequence = flatten(rollout(*transitions))
    assert list(zip(sequence.completion, sequence.mask, sequence.logprobs, strict=True)) == expected
    assert sequence.prompt == ([9, *first] if turns else [])
    assert merge(transitions) == ([sequence] if turns else [])


def test_each_token_has_a_role_and_each_sample_its_call() -> None:
    sequence = flatten(
        rollout(transition([1, 2], [3, 4]), transition([1, 2, 3, 4], [5]), transition([1, 2, 3, 4, 5, 6], [7]))
    )
    whole = (sequence.token_roles, sequence.token_mask, sequence.token_logprobs)
    assert {len(values) for values in whole} == {len(sequence.token_ids)}
    assert sequence.token_mask == [0, 0, 1, 1, 1, 0, 1]
    assert sequence.token_logprobs[2:] == pytest.approx(sequence.logprobs, nan_ok=True)
    assert sequence.token_logprobs[:2] == [0.0, 0.0]
    shown, seen, own = TokenRole.PROMPT, TokenRole.OBSERVATION, TokenRole.SAMPLED
    assert sequence.token_roles == [shown, shown, own, own, own, seen, own]
    assert [(span.start, span.end, span.call, span.agent) for span in sequence.spans] == [
        (0, 2, 0, 0),
        (2, 3, 1, 0),
        (4, 5, 2, 0),
    ]
    masked = sequence.masked()
    assert (masked.token_roles, masked.mask, masked.calls) == (sequence.token_roles, [0] * 5, (0, 1, 2))


def test_tokens_of_old_weights_are_counted_and_masked() -> None:
    turns = [([1], Sample([2, 3], version=4)), ([1, 2, 3, 9], Sample([5], version=6)), ([1, 2, 3, 9, 5], Sample([7]))]
    (sequence,) = merge(turns)
    assert staleness([sequence], newest=6) == {2: 2, 0: 1}
    assert [span.version for span in sequence.spans] == [4, 6, None]
    assert sequence.masked(older_than=4) == sequence
    fresh = sequence.masked(older_than=5)
    assert (fresh.mask, fresh.token_roles) == ([0, 0, 0, 1, 1], sequence.token_roles)
    assert not any(fresh.masked().masked(older_than=0).mask), "what is not trained stays so"


@pytest.mark.parametrize("prompt", [[1, 2, 3, 9], [1, 2], [], [1, 2, 3]])
def test_a_prompt_that_does_not_extend_the_last_one_is_refused(prompt: list[int]) -> None:
    broken = rollout(transition([1, 2], [3, 4]), transition(prompt, [5]))
    with pytest.raises(UsageError, match=f"turn 2 does not extend turn 1 .* at token {min(len(prompt), 3)}"):
        flatten(broken)


def test_a_sampler_without_logprobs_is_seen_to_have_none() -> None:
    sequence = flatten(rollout(TokenTransition([1], Sample([2, 3]), 0.0, {"turn": 1, "metrics": {}})))
    assert all(math.isnan(value) for value in sequence.logprobs)


def test_logprobs_of_another_length_are_refused() -> None:
    with pytest.raises(UsageError, match="2 tokens has 1 log-prob"):
        merge([([1], Sample([2, 3], [0.0]))])


def test_a_fork_carries_what_it_shares_as_prompt() -> None:
    turns = [
        ([1], Sample([2], [-2.0])),
        ([1, 2, 3], Sample([4], [-4.0])),
        ([1, 2, 7], Sample([8], [-8.0])),  # goes back behind the second call
        ([1, 2, 3, 4, 5], Sample([6], [-6.0])),
        ([1, 2, 7, 8], Sample([9], [-9.0])),
    ]
    first, second = merge(turns)
    assert (first.prompt, first.completion, first.mask) == ([1], [2, 3, 4, 5, 6], [1, 0, 1, 0, 1])
    assert (second.prompt, second.completion, second.mask) == ([1, 2, 7], [8, 9], [1, 1])
    assert first.logprobs == [-2.0, 0.0, -4.0, 0.0, -6.0]


@given(st.lists(st.tuples(ids, ids), max_size=8))
def test_no_token_is_lost_or_trained_twice(calls: list[tuple[list[int], list[int]]]) -> None:
    sequences = merge([(prompt, Sample(sampled, [0.0] * len(sampled))) for prompt, sampled in calls])
    assert sum(sum(sequence.mask) for sequence in sequences) == sum(len(sampled) for _, sampled in calls)
    whole = [sequence.prompt + sequence.completion for sequence in sequences]
    assert all(any(prompt + sampled == item[: len(prompt + sampled)] for item in whole) for prompt, sampled in calls)


@given(first=ids, turns=st.lists(st.tuples(ids.filter(bool), ids.filter(bool)), max_size=5))
def test_a_sequence_is_split_into_its_messages(first: list[int], turns: list[tuple[list[int], list[int]]]) -> None:
    prompt, transitions = [9, *first], list[TokenTransition]()
    for sampled, shown in turns:
        transitions.append(transition(list(prompt), sampled))
        prompt += sampled + shown
    parts = [part for sequence in merge(transitions) for part in split(sequence)]
    assert [part.prompt for part in parts] == [list(turn.prompt) for turn in transitions]
    assert [part.completion for part in parts] == [list(turn.sample.tokens) for turn in transitions]
    assert [part.logprobs for part in parts] == [turn.sample.logprobs for turn in transitions]
    assert all(part.mask == [1] * len(part.completion) for part in parts)


def test_each_merged_message_names_its_call() -> None:
    calls = [([1], Sample([2, 3])), ([9], Sample([8])), ([1, 2, 3, 4], Sample([5], version=7))]
    merged = merge(calls)
    assert [[(span.call, span.start, span.end) for span in item.spans] for item in merged] == [
        [(0, 0, 2), (2, 3, 4)],
        [(1, 0, 1)],
    ]


def test_a_message_without_tokens_is_split_off_from_none() -> None:
    (sequence,) = merge([([1], Sample([2])), ([1, 2, 3], Sample([])), ([1, 2, 3, 4], Sample([5, 6]))])
    assert [(item.prompt, item.completion) for item in split(sequence)] == [([1], [2]), ([1, 2, 3, 4], [5, 6])]


def routed(prompt: list[int], sampled: list[int], call: int, *, start: int = 0) -> tuple[list[int], Sample]:
    """Return a call whose routes are the token's place and the call's number."""
    places = range(start, len(prompt) + len(sampled) - 1)
    experts = np.array([[[place, call]] for place in places]).reshape(-1, 1, 2)
    return prompt, Sample(sampled, routed_experts=RoutedExperts(start, experts))


def routes(sequence: TokenSequence) -> list[list[int]] | None:
    return None if sequence.routed_experts is None else sequence.routed_experts.experts[:, 0].tolist()


def test_a_sequence_keeps_the_routes_of_each_message() -> None:
    first, second = routed([1, 2], [3, 4], 1), routed([1, 2, 3, 4, 5], [6, 7], 2, start=1)
    (sequence,) = merge([first, second])
    assert routes(sequence) == [[0, 1], [1, 1], [2, 1], [3, 2], [4, 2], [5, 2]]
    assert [routes(part) for part in split(sequence)] == [
        [[0, 1], [1, 1], [2, 1]],
        [[0, 1], [1, 1], [2, 1], [3, 2], [4, 2], [5, 2]],
    ]
    assert routes(sequence.masked()) == routes(sequence)


def test_a_message_after_an_edited_history_has_routes_of_its_own() -> None:
    whole, edited = merge([routed([1, 2], [3], 1), routed([1, 9], [4], 2)])
    assert (routes(whole), routes(edited)) == ([[0, 1], [1, 1]], [[0, 2], [1, 2]])


@pytest.mark.parametrize("missing", [0, 1])
def test_one_message_without_routes_leaves_the_sequence_without(missing: int) -> None:
    calls = [routed([1], [2], 1), routed([1, 2, 3], [4], 2)]
    calls[missing] = (calls[missing][0], Sample(calls[missing][1].tokens))
    (sequence,) = merge(calls)
    assert sequence.routed_experts is None


def test_routes_with_a_gap_are_refused() -> None:
    with pytest.raises(UsageError, match="begin at token 3, and those up to 1 are known"):
        merge([routed([1], [2], 1), routed([1, 2, 3, 4], [5], 2, start=3)])
