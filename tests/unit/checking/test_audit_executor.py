"""An audit whose tasks other processes judge: the same receipts, and a task that takes its process with it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from harbor_gym.checking.audit.run import AuditPlan, audit_tasks
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.cluster import open_executor
from harbor_gym.errors import SandboxLostError
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import resolve_tasks
from harbor_gym.tasks.receipts import Receipt
from harbor_gym.testing import FakeEnvironment
from harbor_gym.types import ExecutorKind
from tests.helpers.seeded_tasks import SEEDS, write_seed


class Kills(FakeEnvironment):
    """A sandbox that takes its process with it, for the task ``kills``."""

    async def start(self, force_build: bool) -> None:
        if self.environment_dir.parent.name == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().start(force_build)


def test_processes_judge_as_this_one_does(tmp_path: Path) -> None:
    for name, files in {"right": {}, "wrong": SEEDS["leak/tests"]["git"]}.items():
        write_seed(tmp_path / "tasks" / name, files | {"instruction.md": f"{name} is all that this one says.\n"})
    tasks = asyncio.run(resolve_tasks(tmp_path / "tasks"))
    sandbox = environment_config(f"{__name__}:Kills")
    check = CheckPlan(sandbox, tmp_path / "trials", repeat=1, try_exploits=False)

    def audit(folder: str, **settings: object) -> list[Receipt]:
        plan = AuditPlan(tmp_path / folder, check, sandbox="kills", vary=False, **settings)  # pyright: ignore[reportArgumentType]
        return asyncio.run(audit_tasks(tasks, plan)).receipts

    def told(receipts: list[Receipt]) -> list[object]:
        return [receipt.model_dump(exclude={"durations", "judged_at"}) for receipt in receipts]

    with open_executor(ExecutorKind.PROCESS, 2) as executor:
        assert told(audit("there", executor=executor)) == told(audit("here"))
        write_seed(tmp_path / "tasks/kills", {})
        tasks = asyncio.run(resolve_tasks(tmp_path / "tasks"))
        with pytest.raises(SandboxLostError, match="perhaps while it judged kills"):
            audit("there", executor=executor)
