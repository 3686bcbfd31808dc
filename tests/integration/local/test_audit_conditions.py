"""An audit plays sound tasks under other conditions in local sandboxes, and says which one changed the reward."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from harbor_gym._runtime.owners import owner_label
from harbor_gym.checking.audit.run import AuditPlan, audit_tasks
from harbor_gym.checking.audit.vary import find_by_conditions
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import TaskCheck
from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.tasks import SourcedTask
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.seeded_tasks import GRADE, WORK, Files, write_seed

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_GRADED = GRADE.removeprefix("#!/bin/bash\n")


def graded_if(condition: str) -> str:
    """Return a verifier that asks for a condition, too."""
    return f"#!/bin/bash\n{condition} || {{ echo 0 > /logs/verifier/reward.txt; exit; }}\n{_GRADED}"


async def test_a_sandbox_has_the_host_name_that_it_is_given(tmp_path: Path) -> None:
    show = "hostname; cat /etc/hostname; grep -c elsewhere /etc/hosts"
    async with running(make_sandbox(tmp_path, host_name="elsewhere")) as sandbox:
        assert (await output(sandbox, show)).split() == ["elsewhere", "elsewhere", "1"]
        await sandbox.enter_verifier_view([])
        assert (await output(sandbox, show)).split() == ["elsewhere", "elsewhere", "1"]
        assert not [path for path in await sandbox.written_paths() if path.is_relative_to("/etc")]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, set[str]()),
        ({"tests/test.sh": graded_if("[ $(nproc) -gt 1 ]")}, {"flaky/one-processor"}),
        ({"tests/test.sh": graded_if("[ $(date +%z) = +0000 ]")}, {"flaky/time-zone"}),
        ({"tests/test.sh": graded_if("[ $(hostname) = sandbox ]")}, {"flaky/host-name"}),
        ({"tests/test.sh": graded_if("grep -q nameserver /etc/resolv.conf")}, {"hygiene/needs-network"}),
        ({"tests/test.sh": graded_if("[ $(nproc) -gt 1 ] || [ $(hostname) = sandbox ]")}, {"flaky/differs"}),
        (
            {"tests/test.sh": GRADE + "[ $(hostname) = sandbox ] || echo 1 > /logs/verifier/reward.txt\n"},
            {"flaky/host-name"},
        ),
        (
            {"tests/test.sh": graded_if("grep -q nameserver /etc/resolv.conf"),
             "task.toml": '[environment]\nnetwork_mode = "public"\n'},
            set[str](),
        ),
        (
            {"tests/test.sh": graded_if("[ $(nproc) -gt 1 ]"), "task.toml": "[environment]\ncpus = 2\n"},
            set[str](),
        ),
        (
            {"tests/test.sh": graded_if("[ $(date +%z) = +0000 ]"),
             "environment/Dockerfile": f"{WORK['environment/Dockerfile']}ENV TZ=UTC\n"},
            set[str](),
        ),
    ],
    ids=[
        *("right", "one-processor", "time-zone", "host-name", "no-network", "together", "nop"),
        *("declared", "cpus", "zone"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("two_processors")
async def test_the_condition_that_changes_the_reward_is_named(tmp_path: Path, files: Files, found: set[str]) -> None:
    task = write_seed(tmp_path / "task", files)
    check = CheckPlan(
        environment_config("local"), tmp_path / "trials", repeat=1, try_exploits=False, verify_paths="off"
    )
    plan = AuditPlan(tmp_path / "audit", check, sandbox="local")
    (receipt,) = (await audit_tasks([SourcedTask(task.name, task, "tests", "sha256:0")], plan)).receipts
    assert (receipt.verdict, {one.kind for one in receipt.findings}) == ("ok", found)
    load = ["under-load"] if "cpu" in cgroups.places() else []
    assert receipt.settings["vary"] == ["one-processor", *load, "time-zone", "host-name", "no-network"]


@pytest.mark.usefixtures("control_groups")
async def test_the_load_leaves_a_quarter_of_a_processor(tmp_path: Path) -> None:
    """No program in a sandbox can tell its share from a busy machine: the kernel's own limit is looked at."""
    task, seen = write_seed(tmp_path / "task", {}), set[str]()

    async def look() -> None:
        place = cgroups.places()["cpu"]
        while True:
            for group in place.directory.glob(f"harbor-gym-{owner_label()}-*"):
                with contextlib.suppress(OSError):  # a group that ends
                    seen.add((group / ("cpu.cfs_quota_us" if place.version == 1 else "cpu.max")).read_text().split()[0])
            await asyncio.sleep(0.02)

    check = CheckPlan(environment_config("local"), tmp_path / "trials", verify_paths="off")
    looking = asyncio.create_task(look())
    found = [one async for one in find_by_conditions(task, TaskCheck("task", task, oracle=(1.0,), nop=(0.0,)), check)]
    looking.cancel()
    assert (found, seen - {"-1", "max"}) == ([], {"25000"})
