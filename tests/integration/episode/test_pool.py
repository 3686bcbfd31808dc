"""Warm pools over real local sandboxes: which sandboxes are handed out, and how failures and ends are met."""

import asyncio
import pickle
import time
from pathlib import Path
from typing import Any, ClassVar, override

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.config import PoolLimits
from harbor_gym.errors import (
    HarborGymError,
    SandboxStartError,
    TaskError,
    UsageError,
)
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engines import require_engine
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.throttled import TooManyRequestsError, leased
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.local]

COMPLETE = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> None:
    require_engine("local")
    request.getfixturevalue("nothing_left")
    GrudgingEnvironment.refusals.clear()
    GrudgingEnvironment.begun.clear()
    GrudgingEnvironment.at_once = GrudgingEnvironment.most_at_once = 0


class GrudgingEnvironment(LocalEnvironment):
    """A local sandbox whose provider refuses starts as scripted, and whose starts are counted."""

    refusals: ClassVar[list[Exception]] = []
    """Raised by the next starts, one each."""

    begun: ClassVar[list[float]] = []
    at_once: ClassVar[int] = 0
    most_at_once: ClassVar[int] = 0

    @override
    async def start(self, force_build: bool) -> None:
        kind = GrudgingEnvironment
        kind.begun.append(time.monotonic())
        kind.at_once += 1
        kind.most_at_once = max(kind.most_at_once, kind.at_once)
        try:
            await asyncio.sleep(0.02)
            if self.refusals:
                raise self.refusals.pop(0)
            await super().start(force_build)
        finally:
            kind.at_once -= 1


def config_of(task_dir: Path, *, grudging: bool = False, **settings: Any) -> TerminalEnvConfig:
    sandbox = f"{__name__}:GrudgingEnvironment" if grudging else "local"
    return TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, confirm_task_complete=False, **settings)


async def filled(pool: WarmPool) -> None:
    """Wait until the pool has its stock."""
    pool.start()
    async with asyncio.timeout(PATIENCE_SEC):
        while pool.metrics()["pool/ready"] < pool.size:  # noqa: ASYNC110 - a pool does not report that it is full
            await asyncio.sleep(0.01)


async def test_an_episode_from_the_pool_is_an_episode_like_any_other(task_dir: Path, tmp_path: Path) -> None:
    config = config_of(task_dir, trials_dir=tmp_path / "trials")
    async with AsyncTerminalGymEnv(config) as env:
        fresh, _ = await env.reset()
    for folder in (tmp_path / "trials").iterdir():
        folder.rename(tmp_path / folder.name)
    used: list[Path | None] = []
    async with WarmPool(config, size=2) as pool:
        await filled(pool)
        for number in range(3):
            recording = tmp_path / f"{number}.cast"
            lessee = config.model_copy(update={"recording_path": recording})
            async with AsyncTerminalGymEnv(lessee, pool=pool) as env:
                screen, info = await env.reset()
                assert screen == fresh
                assert info["metrics"]["pool/hit"] == float(number < 2) or number == 2
                _, reward, done, info = await env.step([(DONE, 30.0)])
                _, reward, done, info = await env.step(COMPLETE)
            assert (reward, done) == (1.0, True)
            assert recording.read_text().count('"i"') == 1
            used.append(info.get("trial_dir"))
    assert len(set(used)) == 3
    assert {path for path in used if path} == set((tmp_path / "trials").iterdir()), "unused trials leave no folder"
    counts = pool.metrics()
    assert counts["pool/hits"] >= 2
    assert counts["pool/hits"] + counts["pool/misses"] == 3
    assert counts["pool/leaked"] == counts["pool/ready"] == counts["pool/dead"] == 0


async def test_a_sandbox_that_died_while_it_waited_is_never_handed_out(task_dir: Path) -> None:
    async with WarmPool(config_of(task_dir), size=2) as pool:
        await filled(pool)
        for prepared in pool._ready:  # pyright: ignore[reportPrivateUsage]  # nobody else can reach a waiting sandbox
            await prepared.phase.environment.stop(delete=True)
        async with leased(pool) as lease:
            assert not lease.hit
            result = await lease.prepared.phase.environment.exec("echo alive")
            assert result.stdout == "alive\n"
        await filled(pool)
    assert pool.counts.dead == 2
    assert pool.metrics()["pool/leaked"] == 0


async def test_a_refusal_is_waited_out_as_long_as_the_provider_asks(task_dir: Path) -> None:
    GrudgingEnvironment.refusals.append(TooManyRequestsError(0.7))
    limits = PoolLimits(max_starts_at_once=1, backoff_sec=0.01)
    async with WarmPool(config_of(task_dir, grudging=True), size=1, limits=limits) as pool, leased(pool) as lease:
        assert not lease.hit
    refused, granted, *_ = GrudgingEnvironment.begun
    assert granted - refused >= 0.7
    assert pool.counts.failed == 1


async def test_failures_in_a_row_reach_every_lessee_and_a_later_one_tries_anew(task_dir: Path) -> None:
    GrudgingEnvironment.refusals += [RuntimeError(f"no room {number}") for number in range(3)]
    limits = PoolLimits(max_starts_at_once=1, max_failures=3, backoff_sec=0.01)
    async with WarmPool(config_of(task_dir, grudging=True), size=2, limits=limits) as pool:
        lessees = await asyncio.gather(pool.lease(), pool.lease(), return_exceptions=True)
        assert [type(item) for item in lessees] == [SandboxStartError] * 2
        assert "no room 2" in str(lessees[0])
        assert pool.counts.failed == 3
        async with leased(pool):
            await filled(pool)


async def test_starts_are_bounded_in_number_and_rate(task_dir: Path) -> None:
    limits = PoolLimits(max_starts_at_once=2, starts_per_sec=10)
    async with WarmPool(config_of(task_dir, grudging=True), size=5, limits=limits) as pool:
        await filled(pool)
    assert GrudgingEnvironment.most_at_once <= 2
    begun = GrudgingEnvironment.begun
    assert len(begun) == 5
    assert begun[4] - begun[0] >= 0.25, "two at once, then one every tenth of a second"


async def test_what_no_retry_repairs_is_raised_at_once(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "broken", toml="= broken")
    async with WarmPool(config_of(task_dir), size=1) as pool:
        with pytest.raises(TaskError):
            await pool.lease()
    assert pool.counts.failed <= 2, "the lessee's and the stock's first, no second attempt"
    with pytest.raises(UsageError, match="closed"):
        await pool.lease()


async def test_a_pool_serves_only_its_own_configuration(task_dir: Path) -> None:
    pool = WarmPool(config_of(task_dir), size=1)
    with pytest.raises(UsageError, match="max_turns"):
        AsyncTerminalGymEnv(config_of(task_dir, max_turns=3), pool=pool)
    await pool.close()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.06, 0.1, 0.2])
async def test_a_cancelled_lessee_and_a_closed_pool_leave_nothing(task_dir: Path, delay: float) -> None:
    pool = WarmPool(config_of(task_dir), size=1)
    env = AsyncTerminalGymEnv(config_of(task_dir), pool=pool)
    reset, waiting = asyncio.create_task(env.reset()), asyncio.create_task(pool.lease())
    await asyncio.sleep(delay)
    reset.cancel()
    await asyncio.wait((reset,))
    await env.close()
    await pool.close()
    await asyncio.wait((waiting,))
    if waiting.exception() is None:
        await waiting.result().prepared.close()
    else:
        assert isinstance(waiting.exception(), HarborGymError)
    assert pool.metrics()["pool/leaked"] == 0


async def test_closing_an_environment_that_waits_for_the_pool_ends_its_reset(task_dir: Path) -> None:
    async with WarmPool(config_of(task_dir), size=1) as pool:
        env = AsyncTerminalGymEnv(config_of(task_dir), pool=pool)
        reset = asyncio.create_task(env.reset())
        await asyncio.sleep(0)
        await env.close()
        with pytest.raises(UsageError, match="closed"):
            await reset
    assert pool.metrics()["pool/leaked"] == 0


def test_the_end_of_the_loop_closes_a_pool_that_nobody_closed(task_dir: Path) -> None:
    async def forgetful() -> WarmPool:
        pool = shared_pool(config_of(task_dir), size=2)
        assert shared_pool(config_of(task_dir, recording_path=Path("x.cast")), size=1) is pool
        await filled(pool)
        return pool

    pool = asyncio.run(forgetful())
    assert pool.is_closed
    assert pool.counts.discarded == pool.counts.created >= 2
    assert pool.metrics()["pool/leaked"] == 0


@pytest.mark.tinker
async def test_a_group_builder_leases_pickles_and_lets_the_stock_run_out_at_the_end(
    task_dir: Path, tmp_path: Path
) -> None:
    require_engine("tinker")
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskRLDatasetBuilder
    from harbor_gym.pool import close_shared_pools

    byte_level_tokenizer().save_pretrained(tmp_path / "model")
    make = HarborSingleTaskRLDatasetBuilder(
        template=GroupTemplate(
            env=config_of(task_dir),
            model_name=str(tmp_path / "model"),
            renderer_name="qwen3_instruct",
            max_tokens=64,
            group_size=2,
        ),
        num_batches=2,
        warm_sandboxes=2,
    )
    train, _ = await make()
    pool = shared_pool(config_of(task_dir), size=2)
    await filled(pool)
    try:
        for index in range(2):
            (group,) = train.get_batch(index)
            builder = pickle.loads(pickle.dumps(group))
            envs = await builder.make_envs()
            await asyncio.gather(*(env.initial_observation() for env in envs))
            if index == 0:
                await filled(pool)  # while the first batch's episodes still run
            await builder.cleanup()
        assert pool.counts.hits == pool.counts.created == 4
    finally:
        await close_shared_pools()
    assert pool.is_closed
