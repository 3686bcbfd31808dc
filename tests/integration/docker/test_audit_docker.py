"""A sound task is played under the conditions that Docker can make, and a finding says which one changed the reward."""

import subprocess
from pathlib import Path

import pytest

from harbor_gym.checking.audit.vary import conditions_of, find_by_conditions
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import TaskCheck
from harbor_gym.sandboxes import environment_config
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

GRADES = """\
#!/bin/bash
cd /sys/fs/cgroup
quota=$(cat cpu/cpu.cfs_quota_us cpu.max 2>/dev/null)
right=0
if [ "$(cat /srv/answer 2>/dev/null)" = done ] && [ "$(date +%z)" = +0000 ]; then
    case $quota in -1 | max*) right=1 ;; esac
fi
echo $right > /logs/verifier/reward.txt
"""
"""Pays only where no share of the processors' time is set, and in UTC."""


@pytest.fixture(scope="module", autouse=True)
def docker_engine() -> None:
    require_engine("docker")
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)


async def test_the_condition_that_changes_the_reward_is_named(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", test_sh=GRADES)
    (task / "solution").mkdir(exist_ok=True)
    (task / "solution/solve.sh").write_text("#!/bin/bash\necho done > /srv/answer\n")
    check = CheckPlan(
        environment_config("docker"), tmp_path / "trials", repeat=1, try_exploits=False, verify_paths="off"
    )
    known = TaskCheck("task", task, oracle=(1.0,), nop=(0.0,))
    assert conditions_of(check.environment) == ("one-processor", "time-zone")
    found = [one.message async for one in find_by_conditions(task, known, check)]
    assert found == [
        "on one processor the solution scores 0, not 1",
        "in another time zone the solution scores 0, not 1",
    ]
