"""Rewards and environments of one's own in training: by object or by name, in every builder, checked before a start."""

from pathlib import Path
from typing import Any, override

import pytest

from harbor_gym import AsyncTerminalGymEnv, StepResult, TerminalEnvConfig, TerminalEnvWrapper, Transcript, UsageError
from harbor_gym.adapters.tinker.shaping import find_make_env, find_trajectory_reward, trajectory_reward
from harbor_gym.testing import check_env
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.sandboxes.fake_episodes import fake_config

HERE = __name__
COMPLETE = message(None, complete=True)
SOLVED = {"/srv/answer": "done"}
DONE = message("echo done > /srv/answer\n")
STEP_COST = 0.25


class StepCost(TerminalEnvWrapper):
    """Takes a quarter for every step."""

    @override
    async def step(self, action: Any) -> StepResult:
        result = await super().step(action)
        return result._replace(reward=result.reward - STEP_COST)


def make_costly(config: TerminalEnvConfig, *, pool: Any = None) -> StepCost:
    return StepCost(AsyncTerminalGymEnv(config, pool=pool))


class Subclass(AsyncTerminalGymEnv):
    @override
    async def step(self, action: Any) -> StepResult:
        result = await super().step(action)
        return result._replace(reward=result.reward + 1)


def praise(transcript: Transcript) -> float:
    return 0.5 if any("echo" in turn.action for turn in transcript.turns) else -0.5


async def ask_a_judge(transcript: Transcript) -> float:
    last = transcript.turns[-1]
    return 0.125 if last.info.get("end_reason") == "completed" and last.reward == 1.0 else 0.0


def endless(transcript: Transcript) -> float:
    return float("nan")


NOT_CALLABLE = 3


async def rewards_of(builder: Any, *answers: str) -> list[float]:
    from tinker_cookbook.rl.rollouts import do_group_rollout

    return (await do_group_rollout(builder, scripted(*answers))).get_total_rewards()


def group_of(tmp_path: Path, model_dir: str, **settings: Any) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    config = fake_config(tmp_path / "task", solved_when=SOLVED)
    given: dict[str, Any] = {"group_size": 1, "max_tokens": 500, "renderer_name": RENDERER, **settings}
    return HarborSingleTaskEnvGroupBuilder(GroupTemplate(env=config, model_name=model_dir, **given), label="x")


async def test_a_wrapper_closes_its_environment_at_the_end_of_a_block(tmp_path: Path) -> None:
    async with make_costly(fake_config(tmp_path / "task", solved_when=SOLVED)) as env:
        await env.reset()
        assert (await env.step(DONE)).reward == -STEP_COST
    with pytest.raises(UsageError, match="close"):
        await env.step(DONE)


@pytest.mark.tinker
@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({}, 1.0),
        ({"make_env": make_costly}, 1.0 - 2 * STEP_COST),
        ({"make_env": f"{HERE}:make_costly"}, 1.0 - 2 * STEP_COST),
        ({"make_env": Subclass}, 3.0),
        ({"trajectory_reward": praise}, 1.5),
        ({"trajectory_reward": f"{HERE}:ask_a_judge"}, 1.125),
        ({"make_env": make_costly, "trajectory_reward": praise}, 1.5 - 2 * STEP_COST),
    ],
)
async def test_hooks_change_what_a_group_is_paid(
    tmp_path: Path, model_dir: str, hooks: dict[str, Any], expected: float
) -> None:
    group = group_of(tmp_path, model_dir, **hooks)
    assert await rewards_of(group, DONE, COMPLETE) == [pytest.approx(expected)]


@pytest.mark.tinker
async def test_an_addition_is_a_metric_of_its_own_and_stands_in_the_transcript(tmp_path: Path, model_dir: str) -> None:
    import json

    from tinker_cookbook.rl.rollouts import do_group_rollout

    builder = group_of(tmp_path, model_dir, trajectory_reward=praise, transcripts_dir=tmp_path / "kept")
    group = await do_group_rollout(builder, scripted(DONE, COMPLETE))
    assert group.trajectories_G[0].transitions[-1].metrics["trajectory_reward"] == 0.5
    document = json.loads((tmp_path / "kept/x/episode_001.json").read_text())
    assert (document["reward"], document["trajectory_reward"]) == (1.0, 0.5)


@pytest.mark.tinker
@pytest.mark.parametrize("kind", ["HarborSingleTaskRLDatasetBuilder", "HarborRLDatasetBuilder"])
async def test_every_dataset_passes_hooks_on_and_tests_without_the_addition(
    tmp_path: Path, model_dir: str, kind: str
) -> None:
    from harbor_gym.adapters import tinker as adapter

    config = fake_config(tmp_path / "task", solved_when=SOLVED)
    template = adapter.GroupTemplate(
        env=config,
        model_name=model_dir,
        renderer_name=RENDERER,
        max_tokens=500,
        group_size=1,
        make_env=make_costly,
        trajectory_reward=praise,
    )
    train, test = await getattr(adapter, kind)(template=template, num_batches=1, test_episodes=1)()
    assert await rewards_of(train.get_batch(0)[0], DONE, COMPLETE) == [pytest.approx(1.5 - 2 * STEP_COST)]
    assert await rewards_of(test.get_batch(0)[0], DONE, COMPLETE) == [pytest.approx(1.0 - 2 * STEP_COST)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.nowhere:hook", "can't be imported"),
        (f"{HERE}:absent", "can't be imported"),
        (f"{HERE}:NOT_CALLABLE", "is a int, which can't be called"),
        ("praise", "is not written as module.path:name"),
    ],
)
def test_a_hook_that_is_none_is_refused_by_its_name(name: str, words: str) -> None:
    for find in (find_make_env, find_trajectory_reward):
        with pytest.raises(UsageError, match=words) as refused:
            find(name)
        assert repr(name) in str(refused.value)


async def test_an_addition_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="returned nan; expected a finite number"):
        await trajectory_reward(endless, Transcript())


async def test_a_shaped_environment_keeps_the_contract() -> None:
    """A penalty for each step is a reward of one's own, and no breach."""
    (await check_env(make_costly)).raise_for_failures()
