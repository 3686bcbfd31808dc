"""One table from errors to words and rules, and the retry of an episode that the infrastructure lost."""

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, Sample, TokenTerminalEnv, WarmPool, errors, outcomes
from harbor_gym.errors import HarborGymError, SandboxLostError, SandboxThrottledError, TaskError, UsageError
from harbor_gym.outcomes import FAILURE_KINDS, RetryBudget, classify, pause_sec
from harbor_gym.rollout import run_with_retries
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config
from tests.helpers.sandboxes.throttled import Throttled

THROTTLED = "tests.helpers.sandboxes.throttled:Throttled"
KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, HarborGymError)]


async def complete(prompt: Sequence[int]) -> Sample:
    return Sample([*map(ord, COMPLETE), END])


def maker(task: Path, made: list[TokenTerminalEnv] | None = None, **settings: Any) -> Callable[[], TokenTerminalEnv]:
    config = fake_config(task, **settings)

    def make() -> TokenTerminalEnv:
        env = TokenTerminalEnv(AsyncTerminalGymEnv(config), CharacterCodec(), max_tokens=100)
        if made is not None:
            made.append(env)
        return env

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_ours_has_its_row(kind: type[HarborGymError]) -> None:
    row = classify(kind("x"))
    assert row.is_retryable is row.is_masked is kind.is_infrastructure
    assert row.failure_kind in FAILURE_KINDS
    if kind is not HarborGymError:
        assert f"\n{kind.__name__} " in (outcomes.__doc__ or ""), "the table is its documentation"
        assert f" {row.failure_kind} " in (outcomes.__doc__ or "")


def test_words_are_distinguished_and_subclasses_have_their_bases() -> None:
    class Own(SandboxLostError):
        pass

    assert len(set(FAILURE_KINDS)) == len(FAILURE_KINDS)
    assert classify(Own("x")) == classify(SandboxLostError("x"))
    assert classify(KeyError("x")).failure_kind == classify(HarborGymError("x")).failure_kind == "unexpected"


@pytest.mark.parametrize(
    ("error", "attempt", "seconds"),
    [
        (SandboxLostError("x"), 5, 0.0),
        (SandboxThrottledError("x", 90.0), 0, 90.0),
        (SandboxThrottledError("x", 0.0), 3, 0.0),
        (SandboxThrottledError("x", 1e9), 0, 600.0),
        (SandboxThrottledError("x"), 0, 1.0),
        (SandboxThrottledError("x"), 3, 8.0),
        (SandboxThrottledError("x"), 10_000, 60.0),
    ],
)
def test_only_throttling_is_waited_for(error: HarborGymError, attempt: int, seconds: float) -> None:
    assert pause_sec(error, attempt) == seconds


async def test_what_a_provider_asks_to_wait_survives_harbor(tmp_path: Path) -> None:
    Throttled.refusals = 1
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task", sandbox=THROTTLED)) as env:
        with pytest.raises(SandboxThrottledError, match="too many starts") as caught:
            await env.reset()
    assert caught.value.retry_after_sec == 7.5


async def test_a_throttled_episode_runs_again_after_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Throttled, "asked_sec", 0.3)
    Throttled.refusals = 2
    started = time.monotonic()
    rollout = await run_with_retries(maker(tmp_path / "task", sandbox=THROTTLED), complete, max_retries=2)
    assert time.monotonic() - started > 0.6
    assert (rollout.reward, rollout.end_reason, rollout.error) == (1.0, EndReason.COMPLETED, None)
    assert [type(error) for error in rollout.failed_attempts] == [SandboxThrottledError] * 2


@pytest.mark.parametrize("retries", [0, 2])
async def test_an_episode_that_is_lost_again_and_again_has_no_reward(tmp_path: Path, retries: int) -> None:
    made: list[TokenTerminalEnv] = []
    rollout = await run_with_retries(maker(tmp_path / "task", made, fail={"exec": 1}), complete, max_retries=retries)
    assert (rollout.reward, rollout.end_reason, len(made)) == (None, EndReason.INFRASTRUCTURE_ERROR, retries + 1)
    assert len(rollout.failed_attempts) == retries
    for env in made:
        with pytest.raises(UsageError, match="closed"):
            await env.reset()


async def test_a_wrong_task_or_sampler_is_not_tried_twice(tmp_path: Path) -> None:
    made: list[TokenTerminalEnv] = []
    make = maker(tmp_path / "task", made)

    async def broken(prompt: Sequence[int]) -> Sample:
        raise KeyError("no such model")

    with pytest.raises(KeyError):
        await run_with_retries(make, broken, max_retries=3)
    (tmp_path / "task/task.toml").unlink()
    with pytest.raises(TaskError):
        await run_with_retries(make, complete, max_retries=3)
    assert len(made) == 2


async def test_sandboxes_of_a_pool_are_retried_too(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task")
    async with WarmPool(config, size=1) as pool:
        calls = 0

        async def failing_once(prompt: Sequence[int]) -> Sample:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise errors.SamplerError("the engine restarts")
            return await complete(prompt)

        def make() -> TokenTerminalEnv:
            return TokenTerminalEnv(AsyncTerminalGymEnv(config, pool=pool), CharacterCodec(), max_tokens=100)

        rollout = await run_with_retries(make, failing_once)
        assert (rollout.reward, calls) == (1.0, 2)
        assert pool.metrics()["pool/leaked"] == 0


async def test_a_shared_budget_is_spent_once() -> None:
    budget = RetryBudget(2)
    granted = await asyncio.gather(*(budget.allows(SandboxLostError("x"), 0) for _ in range(5)))
    assert sum(granted) == 2
    with pytest.raises(UsageError, match="max_retries"):
        RetryBudget(-1)


@pytest.mark.parametrize(("retries", "failures", "calls"), [(0, 0, 1), (0, 1, 1), (2, 2, 3), (2, 3, 3), (2, 1, 2)])
async def test_a_budget_runs_an_attempt_again_until_it_is_spent(retries: int, failures: int, calls: int) -> None:
    made: list[int] = []

    async def attempt() -> str:
        made.append(len(made))
        if len(made) <= failures:
            raise SandboxLostError(f"{len(made)}")
        return "done"

    running = RetryBudget(retries).run(attempt)
    if failures > retries:
        with pytest.raises(SandboxLostError, match=f"{retries + 1}"):
            await running
    else:
        assert await running == "done"
    assert len(made) == calls


async def test_what_no_retry_repairs_is_run_once() -> None:
    made: list[int] = []

    async def attempt() -> None:
        made.append(1)
        raise TaskError("wrong")

    with pytest.raises(TaskError):
        await RetryBudget(3).run(attempt)
    assert made == [1]
