"""Groups that are closed at their size, and a batch's deadline, in the cookbook's own rollouts."""

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, override

import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym.config import read_episode
from harbor_gym.errors import UsageError
from harbor_gym.stragglers import Stragglers
from harbor_gym.testing import FakeEnvironment
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.sandboxes.flaky import FirstIsLost
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.tinker, pytest.mark.usefixtures("nothing_left")]

SOLVED = {"solved_when": {"/srv/answer": "done"}}
AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"})
COMPLETE = message(None, complete=True)
FOR_EVER = 600
SLOW_TEST = f"[ ! -e /srv/slow ] || sleep {FOR_EVER}\n"
LONG_ENOUGH_SEC = 15.0
"""A deadline by which a sandbox of a busy machine has started and the policy has answered."""


def mixed(answer: Callable[[int, int], str | None]) -> Any:
    """A token policy whose episodes differ.

    Args:
        answer: Of a turn, and how many answers of that turn were asked for before; None never comes.
    """
    from tinker_cookbook.completers import TokenCompleter

    asked: Counter[int] = Counter()
    tokenizer = byte_level_tokenizer()

    class Mixed(TokenCompleter):
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            turn = tokenizer.decode(model_input.to_ints()).count("<|im_start|>assistant") - 1
            text, asked[turn] = answer(turn, asked[turn]), asked[turn] + 1
            if text is None:
                await asyncio.Event().wait()
            return await scripted(*[text or ""] * (turn + 1))(model_input, stop)

    return Mixed()


def make_builder(
    task_dir: Path, model_dir: str, *, size: int, sandbox: str = "local", agent: Any = None, **settings: Any
) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    options = {} if sandbox == "local" else SOLVED
    given: dict[str, Any] = {"sandbox": sandbox, "sandbox_options": options, **settings}
    given |= {"confirm_task_complete": False} if agent is None else {"agent": agent}
    template = GroupTemplate(
        env=read_episode({"task_dir": task_dir, **given}),
        model_name=model_dir,
        renderer_name=RENDERER,
        group_size=size,
        max_tokens=500,
        transcripts_dir=task_dir.parent / "transcripts",
    )
    return HarborSingleTaskEnvGroupBuilder(template, label="train/batch_0001/group_1")


async def roll_out(builder: Any, policy: Any, **settings: Any) -> Any:
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from harbor_gym.adapters.tinker import RetryThenMask

    strategy = pickle.loads(pickle.dumps(RetryThenMask(1, stragglers=Stragglers(**settings))))
    return await do_group_rollout(builder, policy, strategy=strategy)


def transcripts(task_dir: Path) -> list[dict[str, Any]]:
    files = sorted((task_dir.parent / "transcripts").rglob("episode_*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in files]


def sampling(turn: int, number: int) -> str | None:
    """The second answer of the first two to ask for one never comes."""
    return [message(DONE), None if number < 2 else COMPLETE][turn]


def stepping(turn: int, number: int) -> str | None:
    """The second step of the first two to ask for one goes on for ever."""
    endless = json.dumps(
        {"analysis": "", "plan": "", "commands": [{"keystrokes": f"sleep {FOR_EVER}\n", "duration": FOR_EVER}]}
    )
    return [message(DONE), endless if number < 2 else COMPLETE][turn]


def grading(turn: int, number: int) -> str | None:
    """The verifier of the first two waits for ever."""
    return message("touch /srv/slow\n" if number < 2 else DONE, complete=True)


@pytest.mark.local
@pytest.mark.parametrize("slow", [sampling, stepping, grading])
async def test_the_group_is_closed_at_its_size_wherever_the_others_are(
    tmp_path: Path, model_dir: str, slow: Callable[[int, int], str | None]
) -> None:
    task = write_task(tmp_path / "task")
    test = task / "tests/test.sh"
    test.write_text(test.read_text().replace("\n", f"\n{SLOW_TEST}", 1))
    group = await roll_out(make_builder(task, model_dir, size=2), mixed(slow), over_sample=2)
    assert group.get_total_rewards() == [1.0, 1.0]
    metrics = group.metrics_G[0]
    assert (metrics["stragglers/started"], metrics["stragglers/dropped"]) == (4, 2)
    assert (metrics["infra/lost"], metrics["infra/masked"], metrics["infra/retried"]) == (0, 0, 0)
    kept = transcripts(task)
    assert Counter((item["end_reason"], item.get("dropped"), item["reward"]) for item in kept) == {
        ("completed", None, 1.0): 2,
        ("dropped", "group_full", None): 2,
    }
    assert {item["episode"] for item in kept} == {1, 2, 3, 4}


@pytest.mark.local
async def test_at_the_deadline_what_was_done_is_graded_and_who_did_nothing_is_dropped(
    tmp_path: Path, model_dir: str
) -> None:
    def answer(turn: int, number: int) -> str | None:
        if turn == 0:
            return None if number == 3 else message(DONE)
        at_work = message(f"sleep {LONG_ENOUGH_SEC + 5:g}\n", duration=2 * LONG_ENOUGH_SEC)
        return [None, at_work, COMPLETE][number] if turn == 1 else pytest.fail("nobody is asked after the deadline")

    task = write_task(tmp_path / "task")
    builder = make_builder(task, model_dir, size=4, zero_reward_on_limit=True)
    group = await roll_out(builder, mixed(answer), batch_deadline_sec=LONG_ENOUGH_SEC)
    ends = [(item.stop_reason, len(item.transitions)) for item in group.trajectories_G]
    assert sorted(zip(ends, group.get_total_rewards(), strict=True)) == [
        (("batch_deadline", 1), 0.0),
        (("batch_deadline", 2), 0.0),
        (("completed", 2), 1.0),
    ]
    for trajectory, metrics in zip(group.trajectories_G, group.metrics_G, strict=True):
        last = trajectory.transitions[-1]
        assert last.episode_done
        assert last.metrics["verifier/reward"] == 1.0, "it is verified"
        assert metrics[f"ended/{trajectory.stop_reason}"] == 1.0
    metrics = group.metrics_G[0]
    assert (metrics["stragglers/dropped"], metrics["stragglers/dropped_turns"]) == (1, 0)
    assert metrics["stragglers/kept_turns"] == pytest.approx(5 / 3)
    assert Counter((item["end_reason"], item["reward"], len(item["turns"])) for item in transcripts(task)) == {
        ("batch_deadline", 0.0, 1): 1,
        ("batch_deadline", 0.0, 2): 1,
        ("completed", 1.0, 2): 1,
        ("dropped", None, 0): 1,
    }


class NeverUp(FakeEnvironment):
    """A sandbox that does not start."""

    @override
    async def start(self, force_build: bool) -> None:
        await asyncio.Event().wait()


async def test_groups_of_which_nothing_starts_in_time_are_skipped_and_end_the_run_when_they_are_too_many(
    tmp_path: Path, model_dir: str
) -> None:
    from tinker_cookbook.exceptions import AllTrajectoriesFailedError
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from harbor_gym.adapters.tinker import RetryThenMask

    strategy = RetryThenMask(max_lost_groups=2, stragglers=Stragglers(batch_deadline_sec=0.2))
    builder = make_builder(write_task(tmp_path / "task"), model_dir, size=2, sandbox=f"{__name__}:NeverUp")
    with pytest.raises(AllTrajectoriesFailedError, match=r"deadline of 0\.2 s"):
        await do_group_rollout(builder, scripted(COMPLETE), strategy=strategy)
    with pytest.raises(UsageError, match="raise --batch-deadline"):
        await do_group_rollout(builder, scripted(COMPLETE), strategy=strategy)
    kept = transcripts(tmp_path / "task")
    assert [(item["dropped"], item["error"], item["reward"]) for item in kept] == [("batch_deadline", None, None)] * 4


@pytest.mark.local
async def test_what_the_infrastructure_loses_is_covered(tmp_path: Path, model_dir: str) -> None:
    from harbor_gym.adapters.tinker import RetryThenMask

    FirstIsLost.made = 0
    builder = make_builder(
        write_task(tmp_path / "task"), model_dir, size=4, sandbox="tests.helpers.sandboxes.flaky:FirstIsLost"
    )
    strategy = RetryThenMask(0, stragglers=Stragglers(over_sample=1.25))
    from tinker_cookbook.rl.rollouts import do_group_rollout

    group = await do_group_rollout(builder, scripted(message(DONE), COMPLETE), strategy=strategy)
    assert group.get_total_rewards() == [1.0] * 4
    metrics = group.metrics_G[0]
    assert (metrics["infra/lost"], metrics["infra/masked"], metrics["infra/retried"]) == (1, 0, 0)
    assert metrics["stragglers/dropped"] == 0


@pytest.mark.parametrize("agent", [None, AGENT])
async def test_settings_that_cut_nobody_leave_the_data_as_it_is(tmp_path: Path, model_dir: str, agent: Any) -> None:
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    policy, data = scripted(message("pwd\n"), message(DONE), COMPLETE), list[Any]()
    for settings in ({}, {"batch_deadline_sec": 3600.0}):
        task = write_task(tmp_path / f"{len(data)}" / "task")
        group = await roll_out(make_builder(task, model_dir, size=2, sandbox=FAKE, agent=agent), policy, **settings)
        assert group.get_total_rewards() == [1.0, 1.0]
        data.append(
            [
                (item.model_input.to_ints(), {name: list(value.data) for name, value in item.loss_fn_inputs.items()})
                for each in group.trajectories_G
                for item in trajectory_to_data(each, 1.0)
            ]
        )
        ends = [(each.stop_reason, each.final_ob.to_ints()) for each in group.trajectories_G]
        assert ends == [("completed", [])] * 2
        turns = [replace(item, metrics={}, logs={}) for each in group.trajectories_G for item in each.transitions]
        data[-1].append(turns)
    assert data[0] == data[1]


async def test_an_agent_is_ended_graded_and_dropped_likewise(tmp_path: Path, model_dir: str) -> None:
    def answer(turn: int, number: int) -> str | None:
        if turn == 0:
            return None if number == 2 else message(DONE)
        return [None, COMPLETE][number]

    task = write_task(tmp_path / "task")
    builder = make_builder(task, model_dir, size=3, sandbox=FAKE, agent=AGENT)
    group = await roll_out(builder, mixed(answer), batch_deadline_sec=LONG_ENOUGH_SEC / 2)
    ends = [(item.stop_reason, len(item.transitions)) for item in group.trajectories_G]
    assert sorted(zip(ends, group.get_total_rewards(), strict=True)) == [
        (("batch_deadline", 1), 1.0),
        (("completed", 2), 1.0),
    ]
    assert Counter((item["end_reason"], item["reward"]) for item in transcripts(task)) == {
        ("batch_deadline", 1.0): 1,
        ("completed", 1.0): 1,
        ("dropped", None): 1,
    }


async def test_agents_that_are_not_needed_are_ended(tmp_path: Path, model_dir: str) -> None:
    task = write_task(tmp_path / "task")
    builder = make_builder(task, model_dir, size=2, sandbox=FAKE, agent=AGENT)
    group = await roll_out(builder, mixed(sampling), over_sample=2)
    assert group.get_total_rewards() == [1.0, 1.0]
    assert Counter(item["end_reason"] for item in transcripts(task)) == {"completed": 2, "dropped": 2}
