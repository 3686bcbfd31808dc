"""The rollout interface's groups that are closed at their size, and its deadline."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

import pytest
from harbor.models.trial.config import AgentConfig, TaskConfig

from harbor_gym import EndReason, Rollout, Sample
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.gateway import SessionLimits
from harbor_gym.stragglers import Stragglers
from tests.helpers.gateway.clients import THOUGHT, ThinkingCodec, TurnPolicy, text_of
from tests.helpers.sandboxes.fake_episodes import FAKE, message
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"})
LONG_ENOUGH_SEC = 8.0
"""A deadline by which a busy machine's fakes have started and been answered."""


class Policy(TurnPolicy):
    """A policy that never gives some answers: those of a turn, to the first so many that ask.

    Args:
        hanging: Turn → how many.
        answers: One a turn.
    """

    def __init__(self, hanging: dict[int, int], *answers: str) -> None:
        super().__init__(*answers)
        self.hanging = Counter(hanging)

    @override
    async def __call__(self, prompt: Sequence[int]) -> Sample:
        turn = text_of(prompt).count(THOUGHT)
        self.hanging[turn] -= 1
        if self.hanging[turn] >= 0:
            await asyncio.Event().wait()
        return await super().__call__(prompt)


def interface(strategy: str, policy: Policy, stragglers: Stragglers | None, **settings: Any) -> RolloutInterface:
    given: dict[str, Any] = {"sandbox": FAKE, **settings}
    if given["sandbox"] == FAKE:
        given.setdefault("sandbox_options", {"solved_when": {"/srv/answer": "done"}})
    if strategy == "env":
        given["limits"] = SessionLimits(max_answer_tokens=2000)
    else:
        given["agent"] = AGENT
    return RolloutInterface(
        sampler=policy, codec=ThinkingCodec(), strategy=strategy, stragglers=stragglers, n_concurrent=16, **given
    )


def tasks(tmp_path: Path, *names: str) -> list[TaskConfig]:
    return [TaskConfig(path=write_task(tmp_path / name)) for name in names]


@pytest.mark.parametrize("strategy", ["env", "gateway"])
async def test_each_tasks_rollouts_are_the_first_that_end(tmp_path: Path, strategy: str) -> None:
    reported: list[tuple[int, int]] = []

    def note(rollout: Rollout, done: int, total: int) -> None:
        reported.append((done, total))

    playing = interface(strategy, Policy({1: 2}), Stragglers(over_sample=1.75))
    rollouts = await playing.run(tasks(tmp_path, "one", "two", "one", "two", "one"), on_rollout=note)
    assert [item.task_name for item in rollouts] == ["one", "two", "one", "two", "one"]
    assert [item.reward for item in rollouts] == [1.0] * 5
    assert reported == [(number, 5) for number in range(1, 6)]
    groups = [item.metrics for item in rollouts if "stragglers/started" in item.metrics]
    assert sorted(item["stragglers/started"] for item in groups) == [4, 6]
    assert sum(item["stragglers/dropped"] for item in groups) == 5
    assert sum(len(item.segments) for item in rollouts) == 5


@pytest.mark.parametrize("strategy", ["env", "gateway"])
@pytest.mark.parametrize("zero", [False, True])
async def test_at_the_deadline_some_are_graded_and_some_dropped(tmp_path: Path, strategy: str, zero: bool) -> None:
    policy, limit = Policy({0: 1, 1: 1}), Stragglers(batch_deadline_sec=LONG_ENOUGH_SEC)
    rollouts = await interface(strategy, policy, limit, zero_reward_on_limit=zero).run(
        tasks(tmp_path, "one", "two", "three")
    )
    assert [item.task_name for item in rollouts] == ["one", "two", "three"]
    assert Counter((item.end_reason, item.reward, item.error) for item in rollouts) == {
        (EndReason.COMPLETED, 1.0, None): 1,
        (EndReason.BATCH_DEADLINE, 0.0 if zero else 1.0, None): 1,
        (EndReason.DROPPED, None, None): 1,
    }
    assert rollouts[0].metrics["stragglers/dropped"] == 1


@pytest.mark.parametrize("strategy", ["env", "gateway"])
@pytest.mark.parametrize(
    ("hangs_at", "end"), [(0, (EndReason.DROPPED, None)), (1, (EndReason.BATCH_DEADLINE, 1.0))], ids=["first", "second"]
)
async def test_one_rollout_has_the_deadline_and_is_not_over_sampled(
    tmp_path: Path, strategy: str, hangs_at: int, end: tuple[EndReason, float | None]
) -> None:
    policy = Policy({hangs_at: 1})  # a second rollout's would be answered
    limit = Stragglers(over_sample=2, batch_deadline_sec=LONG_ENOUGH_SEC)
    rollout = await interface(strategy, policy, limit).run_one(write_task(tmp_path / "task"))
    assert (rollout.end_reason, rollout.reward, rollout.task_name) == (*end, "task")


@pytest.mark.local
async def test_an_agent_that_is_busy_at_the_deadline_is_ended_and_its_work_graded(tmp_path: Path) -> None:
    busy = message(DONE, "sleep 600\n", duration=600)
    rollouts = await interface(
        "gateway", Policy({}, busy), Stragglers(batch_deadline_sec=2 * LONG_ENOUGH_SEC), sandbox="local"
    ).run(tasks(tmp_path, "task"))
    assert [(item.end_reason, item.reward, item.metrics["turns"]) for item in rollouts] == [
        (EndReason.BATCH_DEADLINE, 1.0, 1)
    ]


@pytest.mark.local
async def test_who_ended_by_himself_before_the_deadline_is_not_cut_while_he_is_graded(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    test = task / "tests/test.sh"
    test.write_text(test.read_text().replace("\n", f"\nsleep {2 * LONG_ENOUGH_SEC + 4:g}\n", 1))
    policy, limit = Policy({}), Stragglers(batch_deadline_sec=2 * LONG_ENOUGH_SEC)
    playing = interface("gateway", policy, limit, sandbox="local", zero_reward_on_limit=True)
    (rollout,) = await playing.run([TaskConfig(path=task)])
    assert (rollout.end_reason, rollout.reward) == (EndReason.COMPLETED, 1.0)
