"""The warm pool over sandboxes in memory: the order of service, the counts, the give-up, the rate of its starts."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, override

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym._runtime import rate_limit
from harbor_gym._runtime.rate_limit import TokenBucket
from harbor_gym.config import PoolLimits, TerminalConfig, TerminalEnvConfig
from harbor_gym.errors import SandboxLostError, SandboxStartError, TaskError, UsageError
from harbor_gym.pool import WarmPool, close_shared_pools, shared_pool
from harbor_gym.terminal import Terminal
from harbor_gym.testing import FakeEnvironment
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config
from tests.helpers.sandboxes.throttled import TooManyRequestsError, leased

SWIFT: dict[str, Any] = {"starts_per_sec": 1e6, "backoff_sec": 1e-6}


class Watched(FakeEnvironment):
    """A fake sandbox whose starts are counted, and refused as scripted."""

    refusals: ClassVar[list[Exception]] = []
    """Raised by the next starts, one each."""

    are_stillborn: ClassVar[bool] = False
    """They end once their terminal is open."""

    begun: ClassVar[int] = 0
    at_once: ClassVar[int] = 0
    most_at_once: ClassVar[int] = 0
    stopped: ClassVar[int] = 0

    @override
    async def start(self, force_build: bool) -> None:
        Watched.begun += 1
        Watched.at_once += 1
        Watched.most_at_once = max(Watched.most_at_once, Watched.at_once)
        refusal = self.refusals.pop(0) if self.refusals else None
        try:
            await super().start(force_build)
            if refusal is not None:
                raise refusal
        finally:
            Watched.at_once -= 1

    @override
    async def make_terminal(self, config: TerminalConfig, *, user: str | int | None) -> Terminal:
        terminal = await super().make_terminal(config, user=user)
        if self.are_stillborn:
            await self.stop(delete=True)
        return terminal

    @override
    async def stop(self, delete: bool) -> None:
        Watched.stopped += 1
        await super().stop(delete)


class Immortal(FakeEnvironment):
    """A fake sandbox that does not stop before it may."""

    may_stop: ClassVar[asyncio.Event]

    @override
    async def stop(self, delete: bool) -> None:
        await self.may_stop.wait()


@pytest.fixture(autouse=True)
def unscripted() -> None:
    Watched.refusals.clear()
    Watched.are_stillborn = False
    Watched.begun = Watched.at_once = Watched.most_at_once = Watched.stopped = 0


@pytest.fixture
def config(tmp_path: Path) -> TerminalEnvConfig:
    return fake_config(tmp_path / "task", sandbox=f"{__name__}:Watched")


async def until(pool: WarmPool, name: str, value: float, *, every_sec: float = 0.002) -> None:
    """Wait until a count of the pool has reached a value."""
    async with asyncio.timeout(PATIENCE_SEC):
        while pool.metrics()[name] < value:  # noqa: ASYNC110 - a pool does not report how far it is
            await asyncio.sleep(every_sec)


def pool_of(config: TerminalEnvConfig, size: int = 1, **limits: Any) -> WarmPool:
    return WarmPool(config, size=size, limits=PoolLimits(**{**SWIFT, **limits}))


# -- served ------------------------------------------------------------------------------------------------------------


async def test_what_is_ready_is_a_hit_and_is_replaced(config: TerminalEnvConfig) -> None:
    async with pool_of(config, 2) as pool:
        await until(pool, "pool/ready", 2)
        async with leased(pool) as first, leased(pool) as second, leased(pool) as third:
            assert (first.hit, second.hit, third.hit) == (True, True, False)
            assert len({lease.prepared for lease in (first, second, third)}) == 3
            assert third.wait_sec > 0
            await until(pool, "pool/ready", 2)
            counts = pool.metrics()
            assert (counts["pool/hits"], counts["pool/misses"], counts["pool/created"]) == (2, 1, 5)
            assert counts["pool/wait_sec"] == pytest.approx(first.wait_sec + second.wait_sec + third.wait_sec)
            assert counts["pool/leaked"] == counts["pool/starting"] == counts["pool/dead"] == counts["pool/failed"] == 0
    assert pool.metrics()["pool/ready"] == pool.metrics()["pool/leaked"] == 0
    assert Watched.stopped == 5
    assert pool.counts.discarded == 2


async def test_an_environment_reports_whether_its_sandbox_was_ready(config: TerminalEnvConfig) -> None:
    async with pool_of(config) as pool, AsyncTerminalGymEnv(config, pool=pool) as env:
        await until(pool, "pool/ready", 1)
        for hit in (1.0, 0.0):
            pool.stop_refilling()
            _, info = await env.reset()
            assert info["metrics"]["pool/hit"] == hit
            assert info["metrics"]["pool/wait_sec"] >= 0
            assert (await env.step(COMPLETE))[1:3] == (1.0, True)
    assert Watched.begun == 2


async def test_lessees_are_served_in_the_order_of_asking(config: TerminalEnvConfig) -> None:
    served: list[int] = []

    async def ask(number: int) -> None:
        async with leased(pool):
            served.append(number)

    async with pool_of(config, max_starts_at_once=1) as pool, asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
    assert served == list(range(5))
    assert pool.metrics()["pool/leaked"] == 0


async def test_a_lessee_that_is_cancelled_just_as_it_is_served_gives_back(config: TerminalEnvConfig) -> None:
    async with pool_of(config) as pool:
        pool.stop_refilling()
        lessee = asyncio.create_task(pool.lease())
        await until(pool, "pool/created", 1, every_sec=0)
        lessee.cancel()
        await asyncio.wait((lessee,))
        assert lessee.cancelled()
        assert (pool.metrics()["pool/ready"], pool.metrics()["pool/leaked"]) == (1, 0)
        async with leased(pool) as lease:
            assert lease.hit
        assert (pool.metrics()["pool/created"], pool.metrics()["pool/leaked"]) == (1, 0)


async def test_what_a_cancelled_lessee_gives_back_goes_to_the_next(config: TerminalEnvConfig) -> None:
    async with pool_of(config, max_starts_at_once=1) as pool:
        pool.stop_refilling()
        lessee, other = (asyncio.create_task(pool.lease()) for _ in range(2))
        await until(pool, "pool/created", 1, every_sec=0)
        lessee.cancel()
        async with asyncio.timeout(PATIENCE_SEC):
            lease = await other
        await lease.prepared.close()
        assert pool.metrics()["pool/created"] - pool.metrics()["pool/ready"] == 1
        assert pool.metrics()["pool/leaked"] == 0


async def test_a_lessee_that_is_cancelled_while_it_waits_is_forgotten(config: TerminalEnvConfig) -> None:
    slow = fake_config(config.task_dir, sandbox=config.sandbox, delay_sec=0.02)
    async with pool_of(slow) as pool:
        pool.stop_refilling()
        lessee = asyncio.create_task(pool.lease())
        await until(pool, "pool/starting", 1)
        lessee.cancel()
        await until(pool, "pool/ready", 1)
        assert pool.metrics()["pool/leaked"] == 0
        async with leased(pool) as lease:
            assert lease.hit
    assert Watched.begun == 1


async def test_the_dead_are_never_handed_out(config: TerminalEnvConfig) -> None:
    Watched.are_stillborn = True
    async with pool_of(config, 2, max_failures=3) as pool:
        await until(pool, "pool/ready", 2)
        with pytest.raises(SandboxLostError, match="every sandbox of task ended"):
            await pool.lease()
        assert pool.counts.dead == 2 + 3
        Watched.are_stillborn = False
        async with leased(pool) as lease:
            assert not lease.hit, "what was tried first was dead"
        assert pool.metrics()["pool/leaked"] == 0


# -- stock -------------------------------------------------------------------------------------------------------------


async def test_no_more_start_at_once_than_allowed(config: TerminalEnvConfig) -> None:
    slow = fake_config(config.task_dir, sandbox=config.sandbox, delay_sec=0.01)
    async with pool_of(slow, 5, max_starts_at_once=2) as pool:
        await until(pool, "pool/starting", 2)
        await until(pool, "pool/ready", 5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert pool.metrics()["pool/starting"] == 0
    assert (Watched.most_at_once, Watched.begun) == (2, 5)


async def test_a_stock_runs_out_and_is_made_again(config: TerminalEnvConfig) -> None:
    async with pool_of(config, 2) as pool:
        await until(pool, "pool/ready", 2)
        pool.stop_refilling()
        async with leased(pool), leased(pool), leased(pool):
            assert pool.metrics()["pool/created"] == 3, "who waits is still served"
            pool.refill_to(3)
            await until(pool, "pool/ready", 3)
            assert pool.size == 3


async def test_nothing_starts_before_it_is_asked_for(config: TerminalEnvConfig) -> None:
    pool = pool_of(config)
    await asyncio.sleep(0.01)
    assert Watched.begun == 0
    pool.start()
    pool.start()
    await until(pool, "pool/ready", 1)
    assert Watched.begun == 1
    await pool.close()


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(config: TerminalEnvConfig, size: int) -> None:
    with pytest.raises(UsageError, match=f"at least 1, got {size}"):
        WarmPool(config, size=size)


def test_only_the_recording_may_differ(config: TerminalEnvConfig) -> None:
    pool = pool_of(config.model_copy(update={"recording_path": Path("a.cast")}))
    pool.require_fit(config)
    pool.require_fit(config.model_copy(update={"recording_path": Path("b.cast")}))
    other = config.model_copy(update={"max_turns": 3, "reward_key": "speed", "recording_path": Path("b.cast")})
    with pytest.raises(UsageError, match="another configuration: max_turns, reward_key differ"):
        AsyncTerminalGymEnv(other, pool=pool)


# -- failures ----------------------------------------------------------------------------------------------------------


def refusals(count: int) -> list[Exception]:
    return [SandboxStartError(f"no room {number}") for number in range(count)]


async def test_failures_in_a_row_reach_every_lessee(config: TerminalEnvConfig) -> None:
    Watched.refusals += refusals(3)
    async with pool_of(config, max_starts_at_once=1, max_failures=3) as pool:
        async with asyncio.timeout(PATIENCE_SEC):
            errors = await asyncio.gather(pool.lease(), pool.lease(), return_exceptions=True)
        assert [type(error) for error in errors] == [SandboxStartError] * 2
        assert ["no room 2" in str(error) for error in errors] == [True] * 2
        assert errors[0] is not errors[1], "each lessee's traceback grows on its own"
        assert (pool.counts.failed, Watched.begun) == (3, 3)
        async with leased(pool) as lease:
            assert not lease.hit
        await until(pool, "pool/ready", 1)
    assert pool.metrics()["pool/leaked"] == 0


async def test_a_lessee_that_came_later_has_a_row_of_its_own(config: TerminalEnvConfig) -> None:
    Watched.refusals += refusals(2)
    slow = fake_config(config.task_dir, sandbox=config.sandbox, delay_sec=0.02)
    async with pool_of(slow, max_starts_at_once=1, max_failures=2) as pool:
        first = asyncio.create_task(pool.lease())
        await until(pool, "pool/failed", 1)
        async with leased(pool) as lease:
            assert not lease.hit
        with pytest.raises(SandboxStartError, match="no room 1"):
            await first


async def test_one_failure_less_reaches_nobody(config: TerminalEnvConfig) -> None:
    Watched.refusals += refusals(2)
    async with pool_of(config, max_starts_at_once=1, max_failures=3) as pool, leased(pool):
        assert pool.counts.failed == 2


async def test_a_success_between_them_breaks_the_row(config: TerminalEnvConfig) -> None:
    async with pool_of(config, max_starts_at_once=1, max_failures=2) as pool:
        for _ in range(3):
            Watched.refusals += refusals(1)
            async with leased(pool):
                await until(pool, "pool/ready", 1)


async def test_failures_side_by_side_count_as_one(config: TerminalEnvConfig) -> None:
    Watched.refusals += refusals(4)
    slow = fake_config(config.task_dir, sandbox=config.sandbox, delay_sec=0.02)
    async with pool_of(slow, 4, max_starts_at_once=4, max_failures=2) as pool, leased(pool):
        await until(pool, "pool/failed", 4)


async def test_after_a_row_of_failures_no_stock_is_made(config: TerminalEnvConfig) -> None:
    Watched.refusals += refusals(2)
    async with pool_of(config, 1, max_starts_at_once=1, max_failures=2) as pool:
        await until(pool, "pool/failed", 2)
        for _ in range(50):
            await asyncio.sleep(0)
        assert Watched.begun == 2
        async with leased(pool):
            assert Watched.begun >= 3


async def test_what_no_retry_can_repair_is_raised_at_once(config: TerminalEnvConfig) -> None:
    (config.task_dir / "task.toml").write_text("= broken")
    async with pool_of(config, max_starts_at_once=1, max_failures=9) as pool:
        async with asyncio.timeout(PATIENCE_SEC):
            with pytest.raises(TaskError):
                await pool.lease()
        assert pool.counts.failed == 1


async def test_a_sandbox_that_does_not_stop_is_counted(config: TerminalEnvConfig) -> None:
    Immortal.may_stop = asyncio.Event()
    immortal = fake_config(config.task_dir, sandbox=f"{__name__}:Immortal", stop_timeout_sec=0.05)
    async with pool_of(immortal) as pool:
        await until(pool, "pool/ready", 1)
    assert (pool.counts.stop_failures, pool.metrics()["pool/leaked"]) == (1, 1)
    Immortal.may_stop.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})  # let it stop after all, while there is a loop


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_closed_pool_serves_nobody(config: TerminalEnvConfig) -> None:
    pool = pool_of(fake_config(config.task_dir, sandbox=config.sandbox, delay_sec=0.05))
    lessee = asyncio.create_task(pool.lease())
    await until(pool, "pool/starting", 1)
    assert not pool.is_closed
    await pool.close()
    await pool.close()
    assert pool.is_closed
    with pytest.raises(UsageError, match="closed while a sandbox was waited for"):
        await lessee
    with pytest.raises(UsageError, match="make a new one"):
        await pool.lease()
    with pytest.raises(UsageError, match="make a new one"):
        pool.start()
    assert Watched.begun == Watched.stopped


async def test_a_pool_that_was_never_started_closes_too(config: TerminalEnvConfig) -> None:
    pool = pool_of(config)
    await pool.close()
    with pytest.raises(UsageError, match="make a new one"):
        await pool.lease()
    assert Watched.begun == 0


def test_a_pool_belongs_to_its_loop(config: TerminalEnvConfig) -> None:
    pool = pool_of(config)
    with asyncio.Runner() as owner, asyncio.Runner() as stranger:

        async def begin() -> None:
            pool.start()
            await until(pool, "pool/ready", 1)

        owner.run(begin())
        with pytest.raises(UsageError, match="another event loop"):
            stranger.run(pool.lease())
        owner.run(pool.close())


async def test_a_shared_pool_is_one_for_each_configuration_and_grows(config: TerminalEnvConfig) -> None:
    other = config.model_copy(update={"max_turns": 3})
    try:
        pool = shared_pool(config, size=1)
        assert shared_pool(config.model_copy(update={"recording_path": Path("x")}), size=3) is pool
        assert shared_pool(config, size=2) is pool
        assert pool.size == 3
        assert shared_pool(other, size=1) is not pool
        await until(pool, "pool/ready", 3)
    finally:
        await close_shared_pools()
    assert pool.is_closed
    again = shared_pool(config, size=1)
    assert again is not pool
    assert again.size == 1
    await again.close()
    assert shared_pool(config, size=1) is not again
    await close_shared_pools()
    await close_shared_pools()


async def test_a_shared_pool_keeps_to_its_limits(config: TerminalEnvConfig) -> None:
    Watched.refusals += refusals(1)
    pool = shared_pool(config, size=1, limits=PoolLimits(max_failures=1, max_starts_at_once=1))
    try:
        with pytest.raises(SandboxStartError, match="no room 0"):
            await pool.lease()
    finally:
        await close_shared_pools()


# -- pace --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands until somebody sleeps; waits are lengthened by a tenth."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    def uniform(low: float, high: float) -> float:
        assert (low, high) == (1, 1.25)
        return 1.1

    monkeypatch.setattr(rate_limit, "time", clock)
    monkeypatch.setattr(rate_limit, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(rate_limit, "random", SimpleNamespace(uniform=uniform))
    return clock


async def spent(clock: SimpleNamespace, bucket: TokenBucket, starts: int) -> list[float]:
    times: list[float] = []
    for _ in range(starts):
        await bucket.acquire()
        times.append(round(clock.now - 1000.0, 6))
    return times


async def test_a_burst_goes_before_the_rate(clock: SimpleNamespace) -> None:
    bucket = TokenBucket(per_sec=10, burst=3)
    # Each wait for a tenth of a second is lengthened to 0.11; the hundredth is a tenth of the next token.
    assert await spent(clock, bucket, 5) == [0.0, 0.0, 0.0, 0.11, 0.209]
    clock.now += 100
    assert await spent(clock, bucket, 4) == [100.209, 100.209, 100.209, 100.319], "no more is saved up than a burst"


async def test_a_pause_holds_all_back_and_is_never_shortened(clock: SimpleNamespace) -> None:
    bucket = TokenBucket(per_sec=10, burst=3)
    bucket.back_off(10)
    bucket.back_off(1)
    assert await spent(clock, bucket, 2) == [12.1, 12.1]


@pytest.mark.parametrize(
    ("errors", "pauses"),
    [
        ([SandboxStartError("no")] * 4, [2.0, 4.0, 8.0, 10.0]),
        ([TooManyRequestsError(30.0)], [30.0]),
        ([TooManyRequestsError(1.0)], [2.0]),
    ],
)
async def test_pauses_double_up_to_a_limit_but_for_what_the_provider_asks(
    config: TerminalEnvConfig, monkeypatch: pytest.MonkeyPatch, errors: list[Exception], pauses: list[float]
) -> None:
    held: list[float] = []
    monkeypatch.setattr(TokenBucket, "back_off", lambda self, seconds: held.append(seconds))  # pyright: ignore[reportUnknownLambdaType]
    Watched.refusals += errors
    limits: dict[str, Any] = {"backoff_sec": 2.0, "max_backoff_sec": 10.0, "max_failures": 9}
    async with pool_of(config, max_starts_at_once=1, **limits) as pool, leased(pool):
        assert held == pauses
