"""The cookbook's own rollout code over our environments, with a scripted policy that samples real tokens."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import TerminalEnvConfig
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engines import require_engine
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.tinker, pytest.mark.local, pytest.mark.usefixtures("engines", "nothing_left")]


@pytest.fixture(scope="module", autouse=True)
def engines() -> None:
    require_engine("tinker")
    require_engine("local")


def make_builder(task_dir: Path, model_dir: str, **settings: Any) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", **settings.pop("config", {}))
    own = {name: settings.pop(name) for name in ("label", "task_name") if name in settings}
    given: dict[str, Any] = {"group_size": 2, "max_tokens": 500, **settings}
    template = GroupTemplate(env=config, model_name=model_dir, renderer_name=RENDERER, **given)
    return HarborSingleTaskEnvGroupBuilder(template, **own)


async def run_group(builder: Any, policy: Any, **kwargs: Any) -> Any:
    from tinker_cookbook.rl.rollouts import do_group_rollout

    return await do_group_rollout(builder, policy, **kwargs)


async def test_a_group_is_rolled_out_verified_and_becomes_one_datum_each(task_dir: Path, model_dir: str) -> None:
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    policy = scripted(message("pwd\n"), message(DONE), message(None, complete=True), message(None, complete=True))
    group = await run_group(make_builder(task_dir, model_dir), policy)
    assert group.get_total_rewards() == [1.0, 1.0]
    for trajectory, metrics in zip(group.trajectories_G, group.metrics_G, strict=True):
        assert trajectory.stop_reason == "completed"
        assert metrics["ended/completed"] == 1.0
        assert metrics["ended/max_turns"] == 0.0
        for earlier, later in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
            prefix = [*earlier.ob.to_ints(), *earlier.ac.tokens]
            assert later.ob.to_ints()[: len(prefix)] == prefix
        data = trajectory_to_data(trajectory, 1.0)
        assert len(data) == 1, "an episode merges into one datum only if each observation extends the last"
        last = trajectory.transitions[-1]
        assert data[0].model_input.length == last.ob.length + len(last.ac.tokens) - 1
        text = byte_level_tokenizer().decode(last.ob.to_ints())
        assert text.count("Write the word done into /srv/answer.") == 1, "the instruction is sent once"
        final = last.metrics
        assert final["verifier/reward"] == 1.0
        assert {"time/verifier_sec", "time/terminal_sec", "stop/completed", "off_template_history"} <= set(final)
        assert "time/sandbox_start_sec" in trajectory.transitions[0].metrics


async def test_a_prompt_that_does_not_fit_ends_before_sampling(task_dir: Path, model_dir: str) -> None:
    builder = make_builder(task_dir, model_dir, group_size=1, max_context_tokens=501)
    group = await run_group(builder, scripted())
    (trajectory,) = group.trajectories_G
    assert trajectory.stop_reason == "context_overflow"
    assert group.get_total_rewards() == [0.0]


async def test_a_builder_pickles_also_after_use(task_dir: Path, model_dir: str) -> None:
    builder = make_builder(task_dir, model_dir, label="train/batch_0000/group_0")
    await builder.make_envs()
    copy = pickle.loads(pickle.dumps(builder))
    group = await run_group(copy, scripted(message(None, complete=True), message(None, complete=True)))
    assert group.get_total_rewards() == [0.0, 0.0]
    await builder.cleanup()


async def test_several_make_envs_before_one_cleanup_leak_nothing(task_dir: Path, model_dir: str) -> None:
    builder = make_builder(task_dir, model_dir)
    envs = [*await builder.make_envs(), *await builder.make_envs()]
    await envs[0].initial_observation()
    await envs[3].initial_observation()
    await builder.cleanup()
    await builder.cleanup()


async def test_an_infrastructure_failure_is_retried_and_then_masked_but_never_a_reward(
    tmp_path: Path, model_dir: str
) -> None:
    from tinker_cookbook.exceptions import AllTrajectoriesFailedError
    from tinker_cookbook.rl.rollout_strategy import MinViableGroup

    broken = write_task(tmp_path / "broken", test_sh="#!/bin/bash\nexit 1\n")
    policy = scripted(message(None, complete=True), message(None, complete=True))
    transcripts = tmp_path / "transcripts"
    builder = make_builder(broken, model_dir, label="g", transcripts_dir=transcripts)
    with pytest.raises(AllTrajectoriesFailedError):
        await run_group(builder, policy, strategy=MinViableGroup(max_retries=1))
    written = [json.loads(path.read_text()) for path in sorted((transcripts / "g").glob("*.json"))]
    assert len(written) == 3, "two episodes and one retry"
    assert {document["end_reason"] for document in written} == {"infrastructure_error"}
    assert {document["reward"] for document in written} == {None}


async def test_a_transcript_records_the_episode(task_dir: Path, model_dir: str, tmp_path: Path) -> None:
    builder = make_builder(task_dir, model_dir, group_size=1, label="a/b", transcripts_dir=tmp_path / "t")
    await run_group(builder, scripted(message(DONE, complete=True), message(None, complete=True)))
    document = json.loads((tmp_path / "t/a/b/episode_001.json").read_text())
    assert document["format"] == 2
    assert document["end_reason"] == "completed"
    assert document["reward"] == 1.0
    assert [turn["action"] for turn in document["turns"]] == [
        message(DONE, complete=True),
        message(None, complete=True),
    ]
    assert "Write the word done" in document["turns"][0]["observation"]


@pytest.fixture
def dataset(task_dir: Path, model_dir: str) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskRLDatasetBuilder

    template = GroupTemplate(
        env=TerminalEnvConfig(task_dir=task_dir, sandbox="local"),
        model_name=model_dir,
        renderer_name=RENDERER,
        max_tokens=100,
        group_size=2,
    )
    return HarborSingleTaskRLDatasetBuilder(template=template, groups_per_batch=3, num_batches=4, test_episodes=5)


async def test_a_dataset_has_the_batches_groups_and_sizes_asked_for(dataset: Any) -> None:
    train, test = await dataset()
    assert len(train) == 4
    batch = train.get_batch(3)
    assert [len(await builder.make_envs()) for builder in batch] == [2, 2, 2]
    assert len({builder.label for index in range(4) for builder in train.get_batch(index)}) == 12
    assert [len(await builder.make_envs()) for builder in test.get_batch(0)] == [1] * 5
    with pytest.raises(IndexError):
        train.get_batch(4)
