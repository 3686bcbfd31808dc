"""The budgets of an episode, without an episode."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason
from harbor_gym.episode.budgets import EpisodeBudgets
from tests.helpers.sandboxes.fake_episodes import fake_config


def budgets(tmp_path: Path, **settings: Any) -> EpisodeBudgets:
    return EpisodeBudgets(fake_config(tmp_path / "task", **settings))


def test_a_budget_without_limits_is_never_spent(tmp_path: Path) -> None:
    spent = budgets(tmp_path, max_turns=None, max_consecutive_parse_failures=None)
    spent.enter_phase(None)
    spent.turns, spent.terminal_sec = 10_000, 1e9
    assert (spent.remaining, spent.exhausted()) == ((1.0, 1.0), None)
    assert [spent.note_parsing(is_failed=True) for _ in range(100)] == [None] * 100


def test_the_last_turn_ends_the_episode(tmp_path: Path) -> None:
    spent = budgets(tmp_path, max_turns=4)
    read: list[tuple[float, EndReason | None]] = []
    for spent.turns in range(1, 6):
        read.append((spent.remaining[0], spent.exhausted()))
    end = EndReason.MAX_TURNS
    assert read == [(0.75, None), (0.5, None), (0.25, None), (0.0, end), (0.0, end)]


@pytest.mark.parametrize(
    ("own_sec", "phase_sec", "at_sec", "left"),
    [
        (10.0, 99.0, 15.0, (0.0, EndReason.TIME_LIMIT)),  # the episode's limit counts all phases
        (20.0, 1.0, 15.0, (0.25, None)),
        (None, 10.0, 15.0, (0.5, None)),  # a phase's own counts from its beginning
        (None, 5.0, 15.0, (0.0, EndReason.TIME_LIMIT)),
    ],
)
def test_a_second_phase_begins_after_ten_seconds(
    own_sec: float | None, phase_sec: float, at_sec: float, left: tuple[float, EndReason | None], tmp_path: Path
) -> None:
    spent = budgets(tmp_path, time_limit_sec=own_sec)
    spent.enter_phase(1000.0)
    spent.terminal_sec = 10.0
    spent.enter_phase(phase_sec)
    spent.terminal_sec = at_sec
    assert (spent.remaining[1], spent.exhausted()) == left


def test_only_failures_in_a_row_end_the_episode(tmp_path: Path) -> None:
    spent = budgets(tmp_path, max_consecutive_parse_failures=2)
    ends = [spent.note_parsing(is_failed=failed) for failed in (True, False, True, True)]
    assert ends == [None, None, None, EndReason.PARSE_FAILURES]
