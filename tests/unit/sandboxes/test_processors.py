"""Which of the machine's processors a sandbox gets."""

import os
from collections import Counter

import pytest

from harbor_gym.sandboxes.supervisor import processors


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def usable(_: int) -> set[int]:
        return {*range(0, 16, 2)}

    monkeypatch.setattr(os, "sched_getaffinity", usable)
    monkeypatch.setattr(processors, "_uses", Counter[int]())


@pytest.mark.parametrize(("cpus", "count"), [(0.01, 1), (1, 1), (1.5, 2), (6.5, 7), (7, 7)])
def test_a_fraction_is_rounded_up(cpus: float, count: int) -> None:
    taken = processors.take(cpus)
    assert len(set(taken)) == count
    assert set(taken) < {*range(0, 16, 2)}
    assert [*taken] == sorted(taken)


@pytest.mark.parametrize("cpus", [None, 7.5, 8, 100])
def test_a_sandbox_with_the_whole_machine_has_no_set(cpus: float | None) -> None:
    assert processors.take(cpus) == ()


def test_the_least_used_come_first_however_many_sandboxes_there_are() -> None:
    taken = [processors.take(3) for _ in range(40)]
    assert set(Counter(number for each in taken for number in each).values()) == {15}
    for each in taken[:8]:
        processors.give_back(each)
    freed = Counter(number for each in taken[:8] for number in each)
    again = Counter(number for _ in range(8) for number in processors.take(3))
    assert again == freed


def test_several_processes_do_not_all_begin_with_the_same_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: set[tuple[int, ...]] = set()
    for _ in range(200):
        monkeypatch.setattr(processors, "_uses", Counter[int]())
        begun.add(processors.take(1))
    assert len(begun) == 8
