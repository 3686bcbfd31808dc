"""A group closed at its size, and a batch's deadline: the episodes that count or are dropped, and none left behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import SandboxTimeoutError, UsageError
from harbor_gym.stragglers import BatchDeadlineError, DropReason, EpisodeClock, Stragglers, play_group

DEADLINE_SEC = 3600.0
"""No episode here reaches it by itself: it passes when the test says so, however slow the machine is."""


@pytest.fixture
def pass_deadline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the running event loop's clock beyond each deadline that began before."""

    def pass_it() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + DEADLINE_SEC)

    return pass_it


class Episodes:
    """Episodes that end when they are told to, and note how."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.closed: dict[int, DropReason | None] = {}
        self.gates: dict[int, asyncio.Event] = {}
        self.results: dict[int, str | None] = {}
        self.plays: dict[int, Callable[[EpisodeClock], Awaitable[str | None]]] = {}

    async def play(self, place: int, clock: EpisodeClock) -> str | None:
        self.started.append(place)
        gate = self.gates.setdefault(place, asyncio.Event())
        try:
            if (play := self.plays.get(place)) is not None:
                return await play(clock)
            await clock.answer(gate.wait)
            return self.results.get(place, f"episode {place}")
        finally:
            await shielded(self._stop(place, clock))

    async def _stop(self, place: int, clock: EpisodeClock) -> None:
        await asyncio.sleep(0)  # as a sandbox takes time
        self.closed[place] = clock.dropped

    def end(self, *places: int) -> None:
        for place in places:
            self.gates.setdefault(place, asyncio.Event()).set()


@pytest.mark.parametrize(
    ("size", "factor", "started"), [(8, 1.0, 8), (8, 1.25, 10), (3, 1.25, 4), (10, 1.1, 11), (1, 1.01, 2), (4, 2.5, 10)]
)
def test_as_many_are_started_as_the_factor_asks_for(size: int, factor: float, started: int) -> None:
    assert Stragglers(over_sample=factor).started(size) == started


@pytest.mark.parametrize("wrong", [{"over_sample": 0.9}, {"over_sample": float("nan")}, {"batch_deadline_sec": 0.0}])
def test_a_number_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Stragglers(**wrong)


async def test_the_first_that_end_are_the_group_in_the_order_of_their_places() -> None:
    episodes = Episodes()
    episodes.end(4, 1, 2, 0)
    closed = await play_group(4, Stragglers(over_sample=1.5), episodes.play)
    assert dict(closed.ended) == {place: f"episode {place}" for place in (0, 1, 2, 4)}
    assert list(closed.ended) == [0, 1, 2, 4]
    assert closed.dropped == {3: DropReason.GROUP_FULL, 5: DropReason.GROUP_FULL}
    assert episodes.closed == {0: None, 1: None, 2: None, 4: None, **closed.dropped}, "all are closed by then"
    assert closed.metrics["stragglers/started"] == 6
    assert closed.metrics["stragglers/dropped"] == 2
    assert closed.metrics["stragglers/dropped_turns"] == 0
    assert closed.metrics["stragglers/kept_turns"] == 1


async def test_lost_ones_are_covered_by_those_that_were_started_beside_them() -> None:
    episodes = Episodes()
    episodes.results = {0: None, 3: None}
    episodes.end(0, 1, 2, 3, 4, 5)
    closed = await play_group(4, Stragglers(over_sample=1.5), episodes.play)
    assert list(closed.ended) == [1, 2, 4, 5]
    assert closed.dropped == {}


async def test_a_group_with_more_losses_than_extra_episodes_is_smaller_and_ends() -> None:
    episodes = Episodes()
    episodes.results = dict.fromkeys((0, 1, 2), None)
    episodes.end(*range(5))
    closed = await play_group(4, Stragglers(over_sample=1.25), episodes.play)
    assert list(closed.ended) == [3, 4]
    assert closed.dropped == {}


async def test_without_settings_nobody_is_dropped_and_each_is_waited_for() -> None:
    episodes = Episodes()
    episodes.end(0, 1)
    playing = asyncio.create_task(play_group(3, Stragglers(), episodes.play))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not playing.done()
    episodes.end(2)
    closed = await playing
    assert (list(closed.ended), closed.dropped, list(closed.metrics)) == ([0, 1, 2], {}, ["stragglers/wait_sec"])
    assert closed.metrics["stragglers/wait_sec"] > 0


async def test_at_the_deadline_those_without_an_answer_are_dropped_and_the_others_are_told(
    pass_deadline: Callable[[], None],
) -> None:
    episodes = Episodes()
    has_begun, graded = asyncio.Event(), asyncio.Event()

    async def cut(clock: EpisodeClock) -> str:
        await clock.answer(lambda: asyncio.sleep(0))
        await has_begun.wait()
        asyncio.get_running_loop().call_soon(pass_deadline)
        with pytest.raises(BatchDeadlineError) as caught:
            await clock.answer(asyncio.Event().wait)  # cancelled in the middle
        assert caught.value.reason == "batch_deadline"
        with pytest.raises(BatchDeadlineError):
            await clock.answer(lambda: pytest.fail("nothing is sampled after the deadline"))
        graded.set()
        return "cut"

    async def starting(clock: EpisodeClock) -> str:
        await asyncio.Event().wait()  # a sandbox that does not come up
        raise AssertionError

    async def busy(clock: EpisodeClock) -> str:
        await clock.answer(lambda: asyncio.sleep(0))
        has_begun.set()
        await graded.wait()  # a command that is running is waited for
        return "busy"

    episodes.plays = {0: cut, 1: starting, 2: busy}
    closed = await play_group(
        4, Stragglers(batch_deadline_sec=DEADLINE_SEC), episodes.play
    )  # the fourth samples its first
    assert dict(closed.ended) == {0: "cut", 2: "busy"}
    assert (
        closed.dropped
        == dict.fromkeys((1, 3), DropReason.BATCH_DEADLINE)
        == {place: why for place, why in episodes.closed.items() if why}
    )
    assert closed.metrics["stragglers/dropped_sec"] > 0


async def test_an_attempt_anew_that_has_no_answer_by_the_deadline_is_dropped(pass_deadline: Callable[[], None]) -> None:
    async def retried(place: int, clock: EpisodeClock) -> str:
        await clock.answer(lambda: asyncio.sleep(0))
        assert clock.restart()
        pass_deadline()
        await asyncio.Event().wait()
        raise AssertionError

    closed = await play_group(1, Stragglers(batch_deadline_sec=DEADLINE_SEC), retried)
    assert closed.dropped == {0: DropReason.BATCH_DEADLINE}


async def test_no_attempt_follows_the_deadline(pass_deadline: Callable[[], None]) -> None:
    async def slow(place: int, clock: EpisodeClock) -> str | None:
        await clock.answer(lambda: asyncio.sleep(0))
        pass_deadline()
        assert not clock.restart()
        return None

    closed = await play_group(2, Stragglers(batch_deadline_sec=DEADLINE_SEC), slow)
    assert (dict(closed.ended), closed.dropped) == ({}, {})


async def test_a_time_out_of_the_samplers_own_is_no_deadline() -> None:
    async def timing_out() -> None:
        raise TimeoutError("the engine's")

    clock = EpisodeClock(asyncio.get_running_loop().time() + 60)
    with pytest.raises(TimeoutError, match="the engine's"):
        await clock.answer(timing_out)
    assert clock.answers == 0


async def test_one_that_was_dropped_and_does_not_end_cleanly_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn(clock: EpisodeClock) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise SandboxTimeoutError("did not stop")

    episodes = Episodes()
    episodes.plays[1] = stubborn
    episodes.end(0)
    closed = await play_group(1, Stragglers(over_sample=2), episodes.play)
    assert list(closed.ended) == [0]
    assert ["did not stop" in line for line in caplog.messages] == [True]


async def test_what_goes_wrong_ends_the_group_and_leaves_nobody() -> None:
    async def broken(clock: EpisodeClock) -> str:
        raise UsageError("a bug")

    episodes = Episodes()
    episodes.plays[2] = broken
    with pytest.raises(UsageError, match="a bug"):
        await play_group(3, Stragglers(over_sample=2, batch_deadline_sec=60), episodes.play)
    assert episodes.closed == dict.fromkeys(episodes.started) == dict.fromkeys(range(6)), "none of them was dropped"


async def test_a_cancelled_group_cancels_its_episodes_also_while_it_closes() -> None:
    """Cancelled at each of its suspensions in turn: no episode is left running, and the cancellation comes out."""
    for suspensions in range(200):
        episodes = Episodes()
        episodes.end(0, 1)
        playing = asyncio.create_task(play_group(2, Stragglers(over_sample=2), episodes.play))
        for _ in range(suspensions):
            await asyncio.sleep(0)
        if playing.done():
            assert suspensions > 3
            break
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert sorted(episodes.closed) == sorted(episodes.started)
    else:
        pytest.fail("the group never ended")
