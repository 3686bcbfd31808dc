"""An audit of tasks that hang, fill their disk and kill their sandbox beside sound ones: each costs its own verdict."""

from pathlib import Path

import pytest

from harbor_gym.checking.audit.run import AuditPlan, audit_tasks
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import resolve_tasks
from tests.helpers.tasks import PASS_IF_DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

PAID = "echo 1 > /logs/verifier/reward.txt\n"
KILLED = "kill -9 -1; while :; do kill -9 -1; done\n"
BAD = {
    "agent-hangs": ("sleep infinity", PASS_IF_DONE, "[agent]\ntimeout_sec = 3\n", "verdict/oracle-fails"),
    "verifier-hangs": (
        None,
        f"#!/bin/bash\nsleep infinity\n{PAID}",
        "[verifier]\ntimeout_sec = 3\n",
        "verdict/no-verdict",
    ),
    "fills": (
        "cat /dev/zero > /srv/full; echo done > /srv/answer",
        PASS_IF_DONE,
        "[environment]\nstorage_mb = 64\n",
        "verdict/no-verdict",
    ),
    "kills": (KILLED, PASS_IF_DONE, "[agent]\ntimeout_sec = 3\n", "verdict/no-verdict"),
    "verifier-kills": (None, f"#!/bin/bash\n{KILLED}{PAID}", "[verifier]\ntimeout_sec = 3\n", "verdict/no-verdict"),
}
"""Name → the solution, the verifier, the tables of task.toml, and the finding that it costs."""


async def test_a_task_costs_its_own_verdict_alone(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    for name in ("sound", "also-sound"):
        write_task(tasks / name, instruction=f"Write the word done into /srv/answer, {name}.\n")
    for name, (solution, test_sh, toml, _) in BAD.items():
        task = write_task(tasks / name, test_sh=test_sh, toml=toml, instruction=f"{name} is what it does.\n")
        if solution is not None:
            (task / "solution/solve.sh").write_text(f"#!/bin/bash\n{solution}\n")
    local, trials = environment_config("local"), tmp_path / "trials"
    check = CheckPlan(local, trials, repeat=1, try_exploits=False, verify_paths="off")
    plan = AuditPlan(tmp_path / "audit", check, sandbox="local", vary=False, jobs=4)
    receipts = (await audit_tasks(await resolve_tasks(tasks), plan)).receipts
    found = {receipt.task: {one.kind for one in receipt.findings} for receipt in receipts}
    assert {name: {kind for kind in kinds if kind.startswith("verdict/")} for name, kinds in found.items()} == {
        **{name: {row[-1]} for name, row in BAD.items()},
        **{name: set[str]() for name in ("sound", "also-sound")},
    }
    assert {receipt.task for receipt in receipts if receipt.verdict == "ok"} == {"sound", "also-sound"}
