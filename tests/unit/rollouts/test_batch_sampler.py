"""Batches: no episode waits for ever, and each gets its own answer, error or cancellation."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, Sample, TokenTerminalEnv, UsageError
from harbor_gym.samplers import BatchSampler
from harbor_gym.transcripts import read_transcript, write_transcript
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

LONG_SEC = 30.0
"""A linger that no test waits out."""


def echo(prompts: list[list[int]]) -> list[Sample]:
    return [Sample(prompt) for prompt in prompts]


class Recording:
    """A ``generate`` that notes its batches."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.threads: set[int] = set()

    def __call__(self, prompts: list[list[int]]) -> Sequence[Sample | Exception]:
        self.batches.append(prompts)
        self.threads.add(threading.get_ident())
        return echo(prompts)


def asking(sampler: BatchSampler, number: int, times: int = 1, pause_sec: float = 0.0) -> Callable[[], Any]:
    """A job that asks with its number, and returns the answer."""

    async def job() -> list[int]:
        got: list[int] = []
        for turn in range(times):
            await asyncio.sleep(pause_sec)
            got += (await sampler([number, turn])).tokens
        return got

    return job


def test_a_batch_holds_all_who_wait_and_is_sampled_in_the_callers_thread() -> None:
    generate = Recording()
    sampler = BatchSampler(generate, linger_sec=LONG_SEC)
    results = sampler.run([asking(sampler, number, times=2) for number in range(4)])
    assert results == [[number, 0, number, 1] for number in range(4)]
    assert [sorted(batch) for batch in generate.batches] == [[[n, turn] for n in range(4)] for turn in range(2)]
    assert generate.threads == {threading.get_ident()}


def test_an_episode_that_ends_makes_the_batch_of_the_others_due() -> None:
    generate = Recording()
    sampler = BatchSampler(generate, linger_sec=LONG_SEC)
    results = sampler.run([asking(sampler, 0, times=1, pause_sec=0.05), asking(sampler, 1, times=4)])
    assert [len(result) for result in results] == [2, 8]
    assert [len(batch) for batch in generate.batches] == [2, 1, 1, 1]


def test_who_never_asks_holds_nobody_up() -> None:
    generate = Recording()
    sampler = BatchSampler(generate, linger_sec=LONG_SEC)

    async def silent() -> list[int]:
        await asyncio.sleep(0.05)
        return []

    assert sampler.run([silent, asking(sampler, 1)]) == [[], [1, 0]]


def test_a_slow_episode_is_waited_for_no_longer_than_the_linger() -> None:
    generate = Recording()
    sampler = BatchSampler(generate, linger_sec=0.1)
    slow = asking(sampler, 9, pause_sec=1.5)
    results = sampler.run([slow, *(asking(sampler, number) for number in range(3))])
    assert [len(batch) for batch in generate.batches] == [3, 1]
    assert results[0] == [9, 0]


def test_while_a_batch_is_sampled_the_next_one_gathers() -> None:
    batches: list[int] = []
    begun, asked = threading.Event(), threading.Semaphore(0)

    def slow(prompts: list[list[int]]) -> list[Sample]:
        batches.append(len(prompts))
        begun.set()
        if len(batches) == 1:
            assert all(asked.acquire(timeout=PATIENCE_SEC) for _ in range(4))
        return echo(prompts)

    async def joining() -> Sample:
        await asyncio.to_thread(begun.wait, PATIENCE_SEC)
        answer = asyncio.ensure_future(sampler([1]))
        await asyncio.sleep(0)
        asked.release()
        return await answer

    sampler = BatchSampler(slow, linger_sec=0.05)
    sampler.run([asking(sampler, 0), *[joining] * 4])
    assert batches == [1, 4]


def test_a_batch_is_no_larger_than_allowed() -> None:
    generate = Recording()
    sampler = BatchSampler(generate, linger_sec=0.1, max_batch_size=2)
    sampler.run([asking(sampler, number) for number in range(5)])
    assert sorted(len(batch) for batch in generate.batches) == [1, 2, 2]


def test_an_exception_in_a_samples_place_reaches_its_episode_alone() -> None:
    def refuse_one(prompts: list[list[int]]) -> list[Sample | Exception]:
        return [KeyError("refused") if prompt[0] == 1 else Sample(prompt) for prompt in prompts]

    sampler = BatchSampler(refuse_one, linger_sec=LONG_SEC)

    async def forgiving() -> str:
        try:
            await sampler([1])
        except KeyError:
            return "refused"
        return "sampled"

    assert sampler.run([forgiving, asking(sampler, 2, times=2)]) == ["refused", [2, 0, 2, 1]]


@pytest.mark.parametrize("raised", [MemoryError("out of memory"), KeyboardInterrupt()])
def test_what_sampling_raises_is_raised_when_every_episode_has_cleaned_up(raised: BaseException) -> None:
    cleaned: list[int] = []

    def broken(prompts: list[list[int]]) -> list[Sample]:
        raise raised

    def job(number: int) -> Callable[[], Any]:
        async def run() -> None:
            try:
                await sampler([number])
            finally:
                await asyncio.sleep(0.05)
                cleaned.append(number)

        return run

    sampler = BatchSampler(broken, linger_sec=LONG_SEC)
    with pytest.raises(type(raised)):
        sampler.run([job(number) for number in range(3)])
    assert sorted(cleaned) == [0, 1, 2]
    sampler = BatchSampler(echo)
    assert sampler.run([asking(sampler, 0)]) == [[0, 0]]


def test_what_an_episode_raises_is_raised_and_the_sampler_can_be_used_again() -> None:
    sampler = BatchSampler(echo, linger_sec=LONG_SEC)

    async def broken() -> None:
        await sampler([0])
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        sampler.run([broken, asking(sampler, 1, times=50, pause_sec=0.01)])
    assert sampler.run([asking(sampler, 1)]) == [[1, 0]]


def test_an_episode_that_gives_up_waiting_is_not_sampled() -> None:
    generate = Recording()
    sampler = BatchSampler(generate, linger_sec=LONG_SEC)

    async def impatient() -> str:
        try:
            async with asyncio.timeout(0.05):
                await sampler([0])
        except TimeoutError:
            return "gave up"
        return "sampled"

    assert sampler.run([impatient, asking(sampler, 1, pause_sec=0.1)]) == ["gave up", [1, 0]]
    assert generate.batches == [[[1, 0]]]


def test_the_wait_for_a_batch_is_kept_apart_from_the_sampling(tmp_path: Path) -> None:
    sampler = BatchSampler(lambda prompts: [Sample([*map(ord, COMPLETE), END]) for _ in prompts])

    waiting = BatchSampler(echo, linger_sec=LONG_SEC)

    async def wait(pause_sec: float) -> float:
        await asyncio.sleep(pause_sec)
        return (await waiting([0])).queued_sec or 0.0

    first, last = waiting.run([lambda: wait(0.0), lambda: wait(0.2)])
    assert first > last >= 0.0, "the first one waited for the last one"
    (rollout,) = sampler.run_episodes(
        [lambda: TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), CharacterCodec(), max_tokens=99)]
    )
    assert rollout.transcript is not None
    write_transcript(tmp_path / "a.json", rollout.transcript, labels={})
    (turn,) = read_transcript(tmp_path / "a.json")[0].turns
    assert turn.queued_sec is not None
    assert turn.thinking_sec is not None
    assert 0.0 <= turn.queued_sec <= turn.thinking_sec


def test_misuse_is_refused() -> None:
    sampler = BatchSampler(lambda prompts: [], linger_sec=0.0)
    assert sampler.run([]) == []
    with pytest.raises(UsageError, match="0 samples for 1 prompts"):
        sampler.run([asking(sampler, 0)])
    with pytest.raises(UsageError, match="its own run"):
        asyncio.run(asking(sampler, 0)())
    nested = BatchSampler(lambda prompts: nested.run([]))
    with pytest.raises(UsageError, match="one batch of episodes at a time"):
        nested.run([asking(nested, 0)])
    for wrong in ({"linger_sec": -1}, {"max_batch_size": 0}):
        with pytest.raises(UsageError, match="at least"):
            BatchSampler(echo, **wrong)  # pyright: ignore[reportArgumentType]  # a caller's mistake


@pytest.mark.usefixtures("nothing_left")
def test_episodes_run_side_by_side_and_the_lost_ones_again(tmp_path: Path) -> None:
    configs = [fake_config(tmp_path / f"task-{number}", rewards=number / 4) for number in range(4)]
    configs.append(fake_config(tmp_path / "lost", fail={"exec": 1}))

    def policy(prompts: list[list[int]]) -> list[Sample]:
        texts = [message("true\n") if prompt.count(1) == 1 else COMPLETE for prompt in prompts]
        return [Sample([*map(ord, text), END], [0.0] * (len(text) + 1)) for text in texts]

    def maker(number: int) -> Callable[[], TokenTerminalEnv]:
        return lambda: TokenTerminalEnv(AsyncTerminalGymEnv(configs[number]), CharacterCodec(), max_tokens=100)

    rollouts = BatchSampler(policy).run_episodes([maker(number) for number in range(5)])
    assert [rollout.reward for rollout in rollouts] == [0.0, 0.25, 0.5, 0.75, None]
    assert [len(rollout.transitions) for rollout in rollouts[:4]] == [2] * 4
    assert len(rollouts[4].failed_attempts) == 1
