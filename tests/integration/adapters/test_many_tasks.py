"""The order of tasks in training: epochs, weights, splits, batches that don't depend on earlier calls."""

import json
import pickle
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.tasks import TaskOrder, resolve_tasks
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engines import require_engine
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.sandboxes.fake_episodes import fake_config
from tests.helpers.tasks import DONE, write_task

seeds = st.integers(0, 2**32)


@given(st.integers(1, 40), seeds, st.integers(0, 5))
def test_in_each_epoch_each_task_comes_once(tasks: int, seed: int, epoch: int) -> None:
    order = TaskOrder([1.0] * tasks, seed=seed)
    assert order.places_before(epoch) == epoch * tasks
    assert sorted(order[epoch * tasks + place] for place in range(tasks)) == list(range(tasks))


@given(st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]), min_size=1, max_size=12), seeds)
def test_tasks_come_in_proportion_to_their_weights(weights: list[float], seed: int) -> None:
    order, epochs = TaskOrder(weights, seed=seed), 20
    places = order.places_before(epochs)
    counts = Counter(order[place] for place in range(places))
    assert [counts[task] for task in range(len(weights))] == [epochs * weight for weight in weights]


@given(st.lists(st.floats(0.05, 4), min_size=1, max_size=8), seeds, st.lists(st.integers(0, 300), max_size=40))
def test_a_place_holds_the_same_task_whatever_was_asked_before(
    weights: list[float], seed: int, asked: list[int]
) -> None:
    order = TaskOrder(weights, seed=seed)
    in_this_order = [order[place] for place in asked]
    assert in_this_order == [TaskOrder(weights, seed=seed)[place] for place in asked]
    assert in_this_order[::-1] == [pickle.loads(pickle.dumps(order))[place] for place in reversed(asked)]


def test_seeds_and_epochs_shuffle_differently() -> None:
    orders = [[TaskOrder([1.0] * 10, seed=seed)[place] for place in range(20)] for seed in range(10)]
    assert len({tuple(order[:10]) for order in orders} | {tuple(order[10:]) for order in orders}) == 20
    kept = TaskOrder([1.0, 1.0, 1.0], shuffle=False)
    assert [kept[place] for place in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0], [float("nan")], [float("inf")]])
def test_weights_that_mean_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(UsageError):
        TaskOrder(weights)


# -- datasets ----------------------------------------------------------------------------------------------------------

FAKE = "harbor_gym.testing:FakeEnvironment"


@pytest.fixture
def tasks_dir(tmp_path: Path) -> Path:
    for number, name in enumerate("abcde"):
        write_task(tmp_path / "tasks" / name, toml=f'[metadata]\ndifficulty = "{"easy" if number < 3 else "hard"}"\n')
    return tmp_path / "tasks"


def builder(tasks_dir: Path, **settings: Any) -> Any:
    require_engine("tinker")
    from harbor_gym.adapters.tinker import GroupTemplate, HarborRLDatasetBuilder

    env = TerminalEnvConfig(task_dir=tasks_dir, sandbox=FAKE, sandbox_options={"solved_when": {"/srv/answer": "done"}})
    given: dict[str, Any] = {
        "env": env,
        "model_name": "m",
        "renderer_name": RENDERER,
        "max_tokens": 500,
        "group_size": 2,
    }
    given |= {field.name: settings.pop(field.name) for field in fields(GroupTemplate) if field.name in settings}
    return HarborRLDatasetBuilder(template=GroupTemplate(**given), **settings)


def names(batch: Any) -> str:
    return "".join(group.template.env.task_dir.name for group in batch)


@pytest.mark.tinker
async def test_an_epoch_is_every_task_in_full_batches(tasks_dir: Path) -> None:
    train, test = await builder(tasks_dir, epochs=2, groups_per_batch=3)()
    assert test is None
    batches = [names(train.get_batch(index)) for index in range(len(train))]
    assert [len(batch) for batch in batches] == [3, 3, 3, 3], "10 groups, and the last batch is filled up"
    assert sorted("".join(batches)[:5]) == sorted("".join(batches)[5:10]) == list("abcde")
    again, _ = await builder(tasks_dir, epochs=2, groups_per_batch=3)()
    assert [names(again.get_batch(index)) for index in (3, 0, 3, 1)] == [batches[i] for i in (3, 0, 3, 1)]
    group = pickle.loads(pickle.dumps(again.get_batch(1)[0]))
    assert (group.label, group.logging_tags()) == ("train/batch_0002/group_1", [group.template.env.task_dir.name])
    with pytest.raises(IndexError):
        train.get_batch(4)


@pytest.mark.tinker
async def test_a_group_draws_its_start_and_backward_follows_the_runs_rewards(tasks_dir: Path, tmp_path: Path) -> None:
    from harbor_gym.adapters.tinker import HarborSingleTaskRLDatasetBuilder

    config = fake_config(tasks_dir / "a", solved_when={"/srv/answer": "done"})
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for word in ("one", "two", "three"):
            await env.step(message(f"echo {word} > b\n"))
        for name in ("first", "second"):
            replace(await env.snapshot(), tokens=(1,)).write(tmp_path / f"old/transcripts/{name}.json")
    make = builder(
        tasks_dir / "a",
        env=config.model_validate({**dict(config), "start_from": tmp_path / "old", "start_turn": "backward"}),
        transcripts_dir=tmp_path / "run/transcripts",
        num_batches=3,
        groups_per_batch=8,
        test_episodes=1,
    )
    train, test = await make()
    assert [group.template.env.start_from for group in test.get_batch(0)] == [None], "a test begins with the task"
    begun = [group.template.env for group in train.get_batch(0)]
    assert {env.start_from.stem for env in begun} == {"first", "second"}
    again, _ = await make()
    assert [group.template.env for group in again.get_batch(0)] == begun
    alone: dict[str, Any] = {"template": make.template, "num_batches": 3, "groups_per_batch": 8}
    for seed, is_same in ((0, True), (1, False)):
        of_one_task, _ = await HarborSingleTaskRLDatasetBuilder(**alone, seed=seed)()
        same: Any = of_one_task.get_batch(0)
        assert ([group.template.env for group in same] == begun) is is_same
    assert {env.start_turn for env in begun} == {3}
    (tmp_path / "run").mkdir()
    record = {"step": 0, "env/all/reward/total": 0.1, "env/a/reward/total": 0.75}
    (tmp_path / "run/metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert {group.template.env.start_turn for group in train.get_batch(1)} == {2}
    assert {group.template.env.start_turn for group in train.get_batch(0)} == {3}, "a resumed run's too"


@pytest.mark.tinker
async def test_filters_weights_and_the_split_come_together(tasks_dir: Path) -> None:
    make = builder(
        tasks_dir,
        where=["difficulty=easy"],
        test_tasks=["b"],
        weights={"c": 3},
        num_batches=2,
        groups_per_batch=4,
        test_episodes=2,
    )
    train, test = await pickle.loads(pickle.dumps(make))()
    assert [Counter(names(train.get_batch(index))) for index in range(2)] == [Counter("accc")] * 2
    assert names(test.get_batch(0)) == "bb"
    assert {group.template.group_size for group in test.get_batch(0)} == {1}
    drawn = [await builder(tasks_dir, test_fraction=0.4, seed=seed, epochs=1).split() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    _, same = await builder(tasks_dir, epochs=1, test_episodes=1)()
    assert names(same.get_batch(0)) == "abcde", "without a split the test set is the training tasks"


@pytest.mark.tinker
async def test_settings_that_fit_nothing_are_refused(tasks_dir: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"epochs": 1, "num_batches": 1},
        {"epochs": 0},
        {"epochs": 1, "weights": {"z": 1.0}},
        {"epochs": 1, "groups_per_batch": 0},
        {"epochs": 1, "group_size": 0},
        {"epochs": 1, "warm_sandboxes": -1},
    ]
    for settings in wrong:
        with pytest.raises(UsageError):
            await builder(tasks_dir, **settings)()
    with pytest.raises((UsageError, TaskError)):
        await builder(tasks_dir, tasks=["no/such@@"], epochs=1)()


@pytest.mark.tinker
async def test_a_warm_stock_follows_the_tasks_of_the_next_batch(tasks_dir: Path, tmp_path: Path) -> None:
    from harbor_gym.pool import close_shared_pools, shared_pool
    from tests.integration.episode.test_pool import filled

    byte_level_tokenizer().save_pretrained(tmp_path / "model")
    train, _ = await builder(
        tasks_dir, model_name=str(tmp_path / "model"), epochs=2, groups_per_batch=2, warm_sandboxes=3, seed=1
    )()
    policy = scripted(message(DONE), message(None, complete=True), message(None, complete=True))
    try:
        for index in range(len(train)):
            for group in train.get_batch(index):
                copy = pickle.loads(pickle.dumps(group))
                assert await _run(copy, policy) == [1.0, 1.0]
            wanted = {config.task_dir.name: size for config, size in train.get_batch(index)[0].warm_next}
            assert sum(wanted.values()) == (3 if index + 1 < len(train) else 0)
            for config, size in train.get_batch(index)[0].warm_next:
                await filled(shared_pool(config, size=size))
        pools = [
            shared_pool(group.template.env, size=1) for index in range(len(train)) for group in train.get_batch(index)
        ]
        assert sum(pool.counts.hits for pool in set(pools)) > len(train)
        assert all(pool.metrics()["pool/leaked"] == 0 for pool in pools)
    finally:
        await close_shared_pools()


async def _run(group: Any, policy: Any) -> list[float]:
    from tinker_cookbook.rl.rollouts import do_group_rollout

    return (await do_group_rollout(group, policy)).get_total_rewards()


@pytest.mark.tinker
async def test_resolved_tasks_are_taken_as_they_are(tasks_dir: Path, tmp_path: Path) -> None:
    tasks = await resolve_tasks([tasks_dir / "a", write_task(tmp_path / "other" / "a")])
    train, _ = await builder(tasks_dir, tasks=tasks, epochs=1, groups_per_batch=2, shuffle=False)()
    assert [group.logging_tags() for group in train.get_batch(0)] == [["a"], ["a~2"]]
