"""One record, any door: with ``require_audit`` a task without a clean receipt is neither listed nor played."""

import asyncio
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbor_gym import EndReason, Sample, TerminalEnvConfig
from harbor_gym.checking.audit.run import AuditPlan, audit_tasks
from harbor_gym.cluster.calls import CallPacker, run_call
from harbor_gym.cluster.task_store import unpack_task
from harbor_gym.errors import HarborGymError, TaskError, UsageError
from harbor_gym.tasks import resolve_tasks
from tests.contract.players.episode import Episode, Played
from tests.contract.test_same_episode import ADAPTERS, SOLVED, adapters
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.seeded_tasks import SEEDS, write_seed
from tests.helpers.tasks import write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED_WHEN = {"solved_when": {"/srv/answer": "done"}}


class Unasked:
    """A policy that is not to be asked."""

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        raise AssertionError("the policy was asked")


async def _audit(folder: Path) -> None:
    await audit_tasks(await resolve_tasks(folder / "tasks"), AuditPlan(folder / "audit", None))


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """Return the folder of an audit of two tasks: ``clean``, and ``wrong``, which has an error."""
    write_task(tmp_path / "tasks/clean")
    write_seed(tmp_path / "tasks/wrong", SEEDS["leak/tests"]["git"])
    asyncio.run(_audit(tmp_path))
    write_task(tmp_path / "tasks/new")
    return tmp_path / "audit"


@pytest.mark.parametrize("adapter", adapters())
async def test_only_a_task_with_a_clean_receipt_is_played(adapter: str, audited: Path, model_dir: str) -> None:
    def episode(name: str, sampler: Callable[..., object]) -> Episode:
        task, settings = audited.parent / "tasks" / name, {"require_audit": audited}
        return Episode(task, model_dir, sampler, FAKE, SOLVED_WHEN, settings=settings)  # pyright: ignore[reportArgumentType]

    for name, why in (("new", "no receipt of"), ("wrong", "finding")):
        try:
            refused = (await ADAPTERS[adapter](episode(name, Unasked()))).failure_kind
        except HarborGymError as exc:
            refused = str(exc)
        assert refused is not None
        assert why in refused or refused == "task_error"
    assert await ADAPTERS[adapter](episode("clean", SOLVED)) == Played(1.0, EndReason.COMPLETED)


def trl_spec(tasks: Path, **settings: Any) -> Sequence[str]:
    from harbor_gym.trl import HarborSpec

    return HarborSpec(tasks, **settings).train_dataset["task"]


def openenv_suite(tasks: Path, **settings: Any) -> Sequence[str]:
    from harbor_gym.adapters.openenv.suite import TaskSuite

    suite = TaskSuite.resolve(tasks, episode=TerminalEnvConfig(task_dir=tasks, **settings))
    return [task.name for task in suite.tasks("train")]


def skyrl_rows(tasks: Path, **settings: Any) -> Sequence[str]:
    from harbor_gym.skyrl import write_dataset

    path = write_dataset(tasks, tasks.parent / "train.jsonl", **settings)
    return [json.loads(line)["task"] for line in path.read_text().splitlines()]


def gymnasium_tasks(tasks: Path, **settings: Any) -> Sequence[str]:
    from harbor_gym.adapters.gymnasium.env import HarborTerminalEnv

    return list(HarborTerminalEnv(task_dirs=tasks, **settings)._tasks._paths)  # pyright: ignore[reportPrivateUsage]  # nothing public lists them


def cookbook_tasks(tasks: Path, **settings: Any) -> Sequence[str]:
    from harbor_gym.adapters.tinker.dataset import HarborRLDatasetBuilder

    template: Any = SimpleNamespace(env=TerminalEnvConfig(task_dir=tasks, **settings))
    builder: Any = SimpleNamespace(tasks=(), template=template, where=(), test_fraction=0.0, test_tasks=(), seed=0)
    train, _ = asyncio.run(HarborRLDatasetBuilder.split(builder))
    return [task.name for task in train]


@pytest.mark.tinker
@pytest.mark.parametrize("door", [trl_spec, openenv_suite, skyrl_rows, gymnasium_tasks, cookbook_tasks])
def test_a_list_leaves_the_others_out_and_says_how_many(
    door: Callable[..., Sequence[str]], audited: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = audited.parent / "tasks"
    assert sorted(door(tasks)) == ["clean", "new", "wrong"]
    assert door(tasks, require_audit=audited) == ["clean"]
    assert "of 3 tasks 2 are left out: 1 have no receipt of their present files" in caplog.text
    (audited / "receipts").rename(audited / "elsewhere")
    with pytest.raises(UsageError, match="holds no receipts"):
        door(tasks, require_audit=audited)


def test_a_node_is_sent_only_audited_tasks_and_needs_no_folder(audited: Path) -> None:
    tasks, packer = audited.parent / "tasks", CallPacker(None)
    clean = TerminalEnvConfig(task_dir=tasks / "clean", require_audit=audited)
    call = packer.pack(getattr, (clean, "require_audit"), {})
    for task in packer.tasks.values():
        unpack_task(task)
    result = run_call(call)
    assert (result.is_error, pickle.loads(result.payload)) == (False, None)
    with pytest.raises(TaskError, match="no receipt"):
        packer.pack(print, (clean.model_copy(update={"task_dir": tasks / "new"}),), {})
