"""The count of tokens finds what a door would lose, double or add."""

from collections import Counter

import pytest

from harbor_gym import Sample, merge
from harbor_gym.types import TokenSequence
from tests.benchmarks.tokens import Counts, bench_tokens, count, format_tokens, places

SAMPLES = [([1, 2], Sample([3, 4])), ([1, 2, 3, 4, 5], Sample([6, 7, 8])), ([1, 9], Sample([3, 4]))]
SAMPLED = Counter(place for prompt, sample in SAMPLES for place in places(prompt, sample.tokens))


def sequences() -> list[TokenSequence]:
    return merge(SAMPLES)


def test_what_is_trained_once_is_right() -> None:
    assert count(SAMPLED, sequences()) == Counts(1, 7, 7)


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        (sequences()[:1], Counts(1, 7, 5, lost=2)),
        ([*sequences(), sequences()[1]], Counts(1, 7, 9, doubled=2)),
        (merge([*SAMPLES, ([7], Sample([3, 4]))]), Counts(1, 7, 9, foreign=2)),
        (merge([(prompt, Sample([*sample.tokens, 11])) for prompt, sample in SAMPLES[2:]]), Counts(1, 7, 3, 5, 0, 1)),
        (merge([([0], SAMPLES[0][1]), *SAMPLES[1:]]), Counts(1, 7, 7, lost=2, foreign=2)),
    ],
    ids=["one is missing", "one is there twice", "one was never sampled", "a token more", "another prompt"],
)
def test_a_fault_is_found(found: list[TokenSequence], counts: Counts) -> None:
    assert count(SAMPLED, found) == counts
    assert not counts.is_right


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("door", ["run_episode", pytest.param("tinker", marks=pytest.mark.tinker)])
async def test_generated_episodes_are_trained_whole(door: str) -> None:
    report = await bench_tokens(generated=3, turns=12, doors=[door], progress=lambda _done, _all: None)
    counts = report.doors[door]
    assert report.is_right, format_tokens(report)
    assert counts is not None
    assert counts.sampled == counts.trained > 5000
    assert counts.refused == 0
