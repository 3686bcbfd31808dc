"""Groups of families in real sandboxes: a first episode, and its copies, by replay or with its processes."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import TerminalEnvConfig, UsageError
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engines import require_engine
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.tasks import DONE, UNDONE

pytestmark = [pytest.mark.tinker, pytest.mark.local, pytest.mark.usefixtures("engines", "nothing_left")]

SHARED = [message("cd /tmp; x=41\n"), message("echo $((x+1)) > made; cat made\n")]
END = message(None, complete=True)


@pytest.fixture(scope="module", autouse=True)
def engines() -> None:
    require_engine("tinker")
    require_engine("local")


def make_builder(task_dir: Path, model_dir: str, transcripts: Path, branch: str | None, **settings: Any) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    config = TerminalEnvConfig(
        task_dir=task_dir,
        sandbox="local",
        sandbox_options=settings.pop("sandbox_options", {}),
        copy_command=settings.pop("copy_command", None),
        confirm_task_complete=False,
        max_turns=8,
    )
    given: dict[str, Any] = {"group_size": 4, "max_tokens": 500, "transcripts_dir": transcripts, **settings}
    template = GroupTemplate(env=config, model_name=model_dir, renderer_name=RENDERER, branch=branch, **given)
    return HarborSingleTaskEnvGroupBuilder(template, label="g")


async def play(builder: Any, *answers: str | list[str], **unlikely: Any) -> Any:
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from harbor_gym.adapters.tinker import RetryThenMask

    policy = scripted(*answers, random=random.Random(3), **unlikely)
    return await do_group_rollout(builder, policy, strategy=RetryThenMask(max_retries=0))


def documents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "g").glob("*.json"))]


@pytest.mark.parametrize(("branch", "shared"), [("2@mid", 2), ("2@3", 3), ("4@1", 1)])
async def test_copies_go_on_from_the_first_episodes_tokens_and_files(
    task_dir: Path, model_dir: str, tmp_path: Path, branch: str, shared: int
) -> None:
    answers = [*SHARED, [message(DONE), message(UNDONE)], message("cat made\n", complete=True)]
    group = await play(make_builder(task_dir, model_dir, tmp_path, branch, copy_command="true"), *answers)
    size = int(branch[0])
    for place, trajectory in enumerate(group.trajectories_G):
        first = group.trajectories_G[place - place % size]
        is_first = trajectory is first
        assert (trajectory.family, trajectory.shared) == (place - place % size, shared if is_first else 0)
        assert len(trajectory.transitions) == (4 if is_first else 4 - shared)
        # Token by token: the copy's first prompt is the first episode's at that turn.
        assert trajectory.transitions[0].ob == first.transitions[0 if is_first else shared].ob
        assert "42" in byte_level_tokenizer().decode(trajectory.transitions[-1].ob.to_ints())
    assert group.metrics_G[0]["branch/copies"] == 4 - 4 // size
    assert group.metrics_G[0]["branch/turn"] == shared
    written = documents(tmp_path)
    assert [len(document["turns"]) for document in written] == [4] * 4, "a copy's transcript is the whole episode"
    assert [document["start"].get("fork_mode") for document in written] == [
        None if place % size == 0 else "replay" for place in range(4)
    ]
    for place, document in enumerate(written):
        marks = document["start"].get("copies", ())
        assert [(mark["turn"], mark["command"]) for mark in marks] == [(shared, "true")] * (place % size > 0)
    assert [document["reward"] for document in written] == group.get_total_rewards()
    for document, trajectory in zip(written, group.trajectories_G, strict=True):
        known = [turn["logprobs"] is not None for turn in document["turns"]]
        assert known == [False] * (4 - len(trajectory.transitions)) + [True] * len(trajectory.transitions)


async def test_the_least_likely_message_is_sampled_again(task_dir: Path, model_dir: str, tmp_path: Path) -> None:
    builder = make_builder(task_dir, model_dir, tmp_path, "2@entropy", group_size=2)
    group = await play(builder, *SHARED, message(DONE), END, unlikely_at=2)
    first, copy = group.trajectories_G
    assert (first.shared, len(copy.transitions)) == (2, 2)
    assert group.get_total_rewards() == [1.0, 1.0]


ONCE = message("x=$RANDOM$RANDOM; echo $x | tee /srv/x; sleep 1000 &\n")
"""No replay shows the same."""
KEPT = message('[ "$x" = "$(cat /srv/x)" ] && jobs %1 >/dev/null && echo 42\n')
FORKABLE = {"forkable": True}


@pytest.mark.criu
@pytest.mark.parametrize(("branch", "shared"), [("4@mid", 2), ("2@2", 2), ("2@9", 3), ("2@entropy", 2)])
async def test_copies_of_forkable_sandboxes_go_on_with_the_processes(
    task_dir: Path, model_dir: str, tmp_path: Path, branch: str, shared: int
) -> None:
    builder = make_builder(task_dir, model_dir, tmp_path, branch, sandbox_options=FORKABLE, copy_command="true")
    choice = [message(DONE), message(UNDONE)] if shared == 2 else message(DONE)
    answers = [ONCE, KEPT, choice, END]
    files = open_files()
    group = await play(builder, *answers, unlikely_at=2)
    size = int(branch[0])
    written = documents(tmp_path)
    assert [document["start"].get("fork_mode") for document in written] == [
        None if place % size == 0 else "exact" for place in range(4)
    ]
    for place, document in enumerate(written):
        marks = document["start"].get("copies", ())
        assert [(mark["turn"], mark["command"]) for mark in marks] == [(shared, "true")] * (place % size > 0)
    assert [document["reward"] for document in written] == group.get_total_rewards()
    assert [len(document["turns"]) for document in written] == [len(answers)] * 4
    assert all("42" in document["turns"][2]["observation"] for document in written)
    for place, trajectory in enumerate(group.trajectories_G):
        first = group.trajectories_G[place - place % size]
        assert trajectory.transitions[0].ob == first.transitions[0 if trajectory is first else shared].ob
    assert group.metrics_G[0]["branch/copies"] == 4 - 4 // size
    assert_trained_once(group, size, shared)
    assert open_files() == files, "no dump is left"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_trained_once(group: Any, size: int, shared: int) -> None:
    """Check the training data of a group: each sampled token once, with its advantage."""
    from tinker_cookbook.rl import train

    from harbor_gym.adapters.tinker.branching import advantages_by_family

    loop: Any = train
    with advantages_by_family():
        data, _ = loop.assemble_training_data([group], loop.compute_advantages([group]))
    sampled = sum(len(step.ac.tokens) for each in group.trajectories_G for step in each.transitions)
    masks = [datum.loss_fn_inputs["mask"].to_torch().tolist() for datum in data]
    assert sum(map(sum, masks)) == sampled
    rewards = group.get_total_rewards()
    means = [sum(rewards[place - place % size :][:size]) / size for place in range(4)]
    for place, (datum, mask) in enumerate(zip(data, masks, strict=True)):
        advantages = datum.loss_fn_inputs["advantages"].to_torch().tolist()
        trained = [advantage for advantage, is_trained in zip(advantages, mask, strict=True) if is_trained]
        common = sum(len(step.ac.tokens) for step in group.trajectories_G[place].transitions[:shared])
        own = trained[0 if place % size else common :]
        assert own == pytest.approx([rewards[place] - means[place]] * len(own))
        if place % size == 0:
            of_family = means[place] - sum(means) / 4
            assert trained[:common] == pytest.approx([of_family] * common)


@pytest.mark.criu
async def test_what_cannot_be_copied_with_its_processes_is_replayed(
    task_dir: Path, model_dir: str, tmp_path: Path
) -> None:
    builder = make_builder(task_dir, model_dir, tmp_path, "2@mid", group_size=2, sandbox_options=FORKABLE)
    await play(builder, message("exec 9<>/dev/tty\n"), message("echo two\n"), message(DONE), END)
    assert [document["start"].get("fork_mode") for document in documents(tmp_path)] == [None, "replay"]


async def test_copies_that_share_no_turn_are_fresh_episodes_of_the_family(
    task_dir: Path, model_dir: str, tmp_path: Path
) -> None:
    group = await play(make_builder(task_dir, model_dir, tmp_path, "4@mid"), message(DONE, complete=True))
    assert [(each.family, each.shared, len(each.transitions)) for each in group.trajectories_G] == [(0, 0, 1)] * 4
    assert [document["start"].get("fork_mode") for document in documents(tmp_path)] == [None] * 4


async def test_a_copy_that_diverges_is_a_fresh_episode_without_a_family(
    task_dir: Path, model_dir: str, tmp_path: Path
) -> None:
    builder = make_builder(task_dir, model_dir, tmp_path, "2@2")
    group = await play(builder, message("date +%N\n"), message(DONE), END)
    assert [(each.family, len(each.transitions)) for each in group.trajectories_G] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert group.get_total_rewards() == [1.0] * 4
    metrics = group.metrics_G[0]
    assert metrics["infra/ForkDivergedError"] == metrics["infra/retried"] == 2
    assert metrics["infra/masked"] == metrics["branch/copies"] == 0


async def test_without_branch_a_group_is_as_it_was(task_dir: Path, model_dir: str, tmp_path: Path) -> None:
    from tinker_cookbook.rl.types import Trajectory

    builder = make_builder(task_dir, model_dir, tmp_path, None, group_size=2)
    group = await play(builder, message(DONE, complete=True))
    assert [type(each) for each in group.trajectories_G] == [Trajectory] * 2
    assert not [name for name in group.metrics_G[0] if name.startswith("branch/")]


async def test_a_group_that_is_no_whole_families_is_refused(task_dir: Path, model_dir: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="group of 4"):
        await play(make_builder(task_dir, model_dir, tmp_path, "3@mid"), END)
