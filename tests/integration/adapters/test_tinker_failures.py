"""Episodes that the infrastructure loses, through the cookbook's own rollouts, advantages and metrics."""

import asyncio
import logging
import pickle
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import TerminalEnvConfig
from harbor_gym.errors import SandboxLostError, SandboxThrottledError, UsageError
from tests.helpers.engines import require_engine
from tests.helpers.policies.token_policies import RENDERER, SamplingClient, message, scripted
from tests.helpers.sandboxes.flaky import FirstIsLost, Flaky
from tests.helpers.tasks import DONE

pytestmark = pytest.mark.tinker

GROUP_SIZE = 6
GIVE_UP = message(None, complete=True)


def make_builder(task_dir: Path, model_dir: str, sandbox: str, size: int = GROUP_SIZE, **options: Any) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    # A verifier that fails in one sandbox of many would else be the policy's failure: another sandbox has a verdict.
    config = TerminalEnvConfig(
        task_dir=task_dir, sandbox=sandbox, sandbox_options=options, ambiguous_failures="infrastructure"
    )
    return HarborSingleTaskEnvGroupBuilder(
        GroupTemplate(env=config, group_size=size, model_name=model_dir, renderer_name=RENDERER, max_tokens=500)
    )


def flaky_builder(task_dir: Path, model_dir: str, share: float) -> Any:
    solved_when = {"/srv/answer": "done"}
    return make_builder(
        task_dir, model_dir, "tests.helpers.sandboxes.flaky:Flaky", share=share, solved_when=solved_when
    )


def sometimes_right(seed: int) -> Any:
    """A policy that solves the task in every other episode; two commands in each."""
    return scripted(message("true\n"), [message(DONE), message("true\n")], GIVE_UP, GIVE_UP, random=random.Random(seed))


async def rollout(builder: Any, policy: Any, strategy: Any, *, remove_constant: bool = False) -> Any:
    """Run a group as the cookbook's loop does."""
    from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward

    client: Any = SamplingClient(policy)
    return await do_group_rollout_and_filter_constant_reward(
        client, builder, 500, 1.0, remove_constant, enable_logging=False, strategy=strategy
    )


@pytest.mark.parametrize(("share", "retries"), [(0.1, 3), (0.5, 1), (0.5, 0)])
async def test_lost_episodes_leave_the_baseline_to_the_survivors(
    task_dir: Path, model_dir: str, share: float, retries: int
) -> None:
    from tinker_cookbook.rl.data_processing import compute_advantages
    from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
    from tinker_cookbook.rl.rollouts import RolloutErrorCounter

    from harbor_gym.adapters.tinker import RetryThenMask

    Flaky.begin(seed=7)
    strategy, counter, groups, policy = RetryThenMask(retries), RolloutErrorCounter(), [], sometimes_right(7)
    for _ in range(12):
        graded_before, lost_before = len(Flaky.graded), Flaky.lost.total()
        group = await rollout(flaky_builder(task_dir, model_dir, share), policy, strategy)
        counter.ingest(group)
        if group is None:
            assert Flaky.lost.total() - lost_before == GROUP_SIZE * (1 + retries)
            continue
        groups.append(group)
        graded, lost = Flaky.graded[graded_before:], Flaky.lost.total() - lost_before
        rewards = group.get_total_rewards()
        assert Counter(rewards) == Counter(graded), "what no verifier graded is no part of the group"
        (advantages,) = compute_advantages([group])
        mean = sum(graded) / len(graded)
        assert advantages.tolist() == pytest.approx([reward - mean for reward in rewards])
        metrics = group.metrics_G[0]
        assert metrics["infra/lost"] == lost
        assert metrics["infra/masked"] == GROUP_SIZE - len(rewards) == lost - metrics["infra/retried"]
        assert metrics["infra/masked"] * retries <= metrics["infra/retried"] <= GROUP_SIZE * retries
        assert sum(metrics[f"infra/{name}"] for name in Flaky.lost) == lost
    assert len(Flaky.lost) > 1, "the seed must lose episodes in several ways"
    assert {0.0, 1.0} == set(Flaky.graded)
    run = {name.removeprefix("rollout_errors/"): count for name, count in counter.get_metrics().items()}
    assert run == {**Flaky.lost, "total": Flaky.lost.total(), "groups_skipped": 12 - len(groups)}
    batch = compute_trajectory_metrics(groups, [["task"]] * len(groups))
    assert batch["env/all/infra/lost"] == pytest.approx(sum(g.metrics_G[0]["infra/lost"] for g in groups) / len(groups))


async def test_a_lost_episode_is_one_line_with_its_name(
    task_dir: Path, model_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    from harbor_gym.adapters.tinker import RetryThenMask

    caplog.set_level(logging.INFO, logger="harbor_gym")
    Flaky.begin(seed=7)
    builder = replace(flaky_builder(task_dir, model_dir, 0.5), label="train/batch_0002/group_1", task_name="a task")
    await rollout(builder, sometimes_right(7), RetryThenMask(1))
    lost = [line for line in caplog.messages if " was lost" in line]
    assert len(lost) == Flaky.lost.total() > 1
    assert all(
        re.match(r"episode \d+ of a task, batch 2, group 1 was lost(: | and runs again in)", line) for line in lost
    )
    ended = [line for line in caplog.messages if ", reward " in line]
    assert len(ended) == len(Flaky.graded) > 0
    assert all(re.match(r"episode \d+ of a task, batch 2, group 1: ", line) for line in ended)


async def test_the_run_goes_on_after_a_lost_group_and_ends_after_too_many(task_dir: Path, model_dir: str) -> None:
    from harbor_gym.adapters.tinker import RetryThenMask

    strategy, policy = RetryThenMask(max_retries=1, max_lost_groups=2), sometimes_right(1)
    Flaky.begin(seed=1)
    for _ in range(2):
        assert await rollout(flaky_builder(task_dir, model_dir, 1.0), policy, strategy) is None
        whole = await rollout(flaky_builder(task_dir, model_dir, 0.0), policy, strategy)
        assert len(whole.trajectories_G) == GROUP_SIZE
        assert len(whole.rollout_errors) == 2 * GROUP_SIZE, "the lost group's errors are booked with the next"
    assert strategy.fault is None
    assert await rollout(flaky_builder(task_dir, model_dir, 1.0), policy, strategy) is None
    with pytest.raises(Exception, match=r"fake sandbox|verifier") as caught:
        await rollout(flaky_builder(task_dir, model_dir, 1.0), policy, strategy)
    assert strategy.fault is caught.value
    assert pickle.loads(pickle.dumps(RetryThenMask(2))) == RetryThenMask(2)


async def test_a_bug_ends_the_run_instead_of_being_skipped(task_dir: Path, model_dir: str) -> None:
    from harbor_gym.adapters.tinker import RetryThenMask

    Flaky.begin(seed=1)
    strategy = RetryThenMask()
    assert strategy.catches_group_errors, "the cookbook counts errors only for a strategy that declares it at the start"
    with pytest.raises(IndexError):
        await rollout(flaky_builder(task_dir, model_dir, 0.0), scripted(message("true\n")), strategy)
    assert isinstance(strategy.fault, IndexError)


@pytest.mark.usefixtures("nothing_left")
async def test_a_cancelled_group_leaves_no_rollout_behind(task_dir: Path, model_dir: str) -> None:
    from harbor_gym.adapters.tinker import RetryThenMask

    Flaky.begin(seed=1)
    slow = scripted(message("sleep 60\n"))
    before = asyncio.all_tasks()
    group = asyncio.ensure_future(rollout(flaky_builder(task_dir, model_dir, 0.0), slow, RetryThenMask()))
    await asyncio.sleep(0.3)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert asyncio.all_tasks() <= before


async def test_groups_of_one_reward_are_distinguished_from_mixed_ones(task_dir: Path, model_dir: str) -> None:
    from tinker_cookbook.rl.metric_util import compute_trajectory_metrics

    from harbor_gym.adapters.tinker import RetryThenMask

    Flaky.begin(seed=1)
    always = scripted(message(DONE), GIVE_UP, GIVE_UP)
    constant = await rollout(flaky_builder(task_dir, model_dir, 0.0), always, RetryThenMask())
    mixed = await rollout(flaky_builder(task_dir, model_dir, 0.0), sometimes_right(3), RetryThenMask())
    metrics = compute_trajectory_metrics([constant, mixed], [["a"], ["b"]])
    assert metrics["env/all/by_group/frac_all_good"] == metrics["env/all/by_group/frac_mixed"] == 0.5
    removed = flaky_builder(task_dir, model_dir, 0.0)
    assert await rollout(removed, always, RetryThenMask(), remove_constant=True) is None


def test_only_what_may_pass_is_forgiven() -> None:
    import tinker

    from harbor_gym.adapters.tinker.strategy import is_passing

    def failed(category: str) -> Exception:
        return tinker.RequestFailedError("m", "id", tinker.types.RequestErrorCategory(category))

    for error in (SandboxLostError("x"), SandboxThrottledError("x", 1.0), TimeoutError(), failed("server")):
        assert is_passing(error)
    for error in (UsageError("x"), TypeError("x"), failed("user")):
        assert not is_passing(error)


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_real_sandbox_that_goes_away_is_replaced(task_dir: Path, model_dir: str) -> None:
    require_engine("local")
    from harbor_gym.adapters.tinker import RetryThenMask

    FirstIsLost.made = 0
    builder = make_builder(task_dir, model_dir, "tests.helpers.sandboxes.flaky:FirstIsLost", size=2)
    group = await rollout(builder, scripted(message(DONE), GIVE_UP, GIVE_UP), RetryThenMask(max_retries=1))
    assert group.get_total_rewards() == [1.0, 1.0]
    assert FirstIsLost.made == 3
    assert (group.metrics_G[0]["infra/lost"], group.metrics_G[0]["infra/masked"]) == (1, 0)
    assert len(group.rollout_errors) == 1
