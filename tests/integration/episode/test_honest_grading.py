"""Only the verifier decides the reward: nothing that the policy leaves running or lies about does."""

import re
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import VerifierError
from harbor_gym.types import EpisodeInfo
from tests.helpers.harbor_trials import COMPLETE, graded_in, run_episode
from tests.helpers.tasks import BASE, FORGER, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

SLOW_NO = """\
#!/bin/bash
echo 0 > /logs/verifier/reward.txt
sleep 0.3
"""

DOCKERFILE = f"""\
FROM {BASE}
RUN useradd --create-home dev && useradd grader
RUN echo 'touch /run/serving; while :; do sleep 0.05; done' > /usr/local/bin/serve
WORKDIR /srv
"""


async def episode(task_dir: Path, *keystrokes: str, **settings: Any) -> tuple[float, EpisodeInfo]:
    """Type each line, declare the task complete, and return the verdict."""
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False, **settings)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for keys in keystrokes:
            await env.step([(f"{keys}\n", 30.0)])
        _, reward, done, info = await env.step(COMPLETE)
    assert done
    return reward, info


DISGUISES = {
    "a job of the shell": "( {} ) &",
    "a daemon": "setsid bash -c '{}' >/dev/null 2>&1 < /dev/null & disown",
    "a daemon forked twice that hides where it is from": (
        "(setsid env -i bash -c '( {} ) & exit' >/dev/null 2>&1 < /dev/null &)"
    ),
    "one that forks ahead of its killer": (
        "f() {{ setsid env -i bash -c '( {} ) & sleep 0.02; exec bash /tmp/again' >/dev/null 2>&1 & }}; "
        "declare -f f > /tmp/again; echo f >> /tmp/again; f; disown -a"
    ),
}


@pytest.mark.parametrize("keeps", [None, False])
@pytest.mark.parametrize("disguise", DISGUISES)
async def test_nothing_that_runs_on_writes_the_verdict(tmp_path: Path, disguise: str, keeps: bool | None) -> None:
    task_dir = write_task(tmp_path / "forged", test_sh=SLOW_NO)
    reward, info = await episode(task_dir, DISGUISES[disguise].format(FORGER), keep_agent_processes=keeps)
    assert reward == 0.0
    assert info.get("rewards") == {"reward": 0.0}


async def test_kept_processes_of_another_user_can_not_write_the_verdict(tmp_path: Path) -> None:
    toml = '[agent]\nuser = "dev"\n[metadata]\nkeep_agent_processes = true\n'
    looks_around = f"{SLOW_NO}pgrep -u dev bash > /logs/verifier/forgers && stat -c '%U %a' /logs/verifier\n"
    task_dir = write_task(tmp_path / "kept", dockerfile=DOCKERFILE, toml=toml, test_sh=looks_around)
    reward, info = await episode(task_dir, f"({FORGER}) 2>/dev/null &", trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert reward == 0.0
    assert trial_dir is not None
    assert (trial_dir / "verifier/forgers").read_text().strip(), "the forger was to run on"
    assert (trial_dir / "verifier/test-stdout.txt").read_text() == "root 755\n"


async def test_kept_processes_write_no_verdict_of_a_later_step_either(tmp_path: Path) -> None:
    """Harbor opens a step's verifier directory to all; a process kept from the first step waits for that."""
    toml = '[agent]\nuser = "dev"\n[metadata]\nkeep_agent_processes = true\n'
    steps = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two", "three"))
    looks_around = f"{SLOW_NO}pgrep -u dev bash > /logs/verifier/forgers && stat -c '%U %a' /logs/verifier\n"
    task_dir = write_task(tmp_path / "kept", dockerfile=DOCKERFILE, toml=toml + steps, test_sh=looks_around)
    for name in ("one", "two", "three"):
        (task_dir / "steps" / name).mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Do it.\n")
    ends, _ = await run_episode(
        task_dir, [f"({FORGER}) 2>/dev/null &", *LEAVINGS.values()], sandbox="local", trials_dir=tmp_path / "trials"
    )
    assert graded_in(ends) == [{"reward": 0.0}] * 3
    trial_dir = ends[-1][2].get("trial_dir")
    assert trial_dir is not None
    for name in ("one", "two", "three"):
        assert (trial_dir / "steps" / name / "verifier/forgers").read_text().strip(), "the forger was to run on"
        assert (trial_dir / "steps" / name / "verifier/test-stdout.txt").read_text() == "root 755\n"


async def test_a_verifier_of_another_user_owns_its_directory(tmp_path: Path) -> None:
    test_sh = "#!/bin/bash\nstat -c '%U %a' /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt\n"
    toml = '[agent]\nuser = "dev"\n[verifier]\nuser = "grader"\n'
    task_dir = write_task(tmp_path / "owned", dockerfile=DOCKERFILE, toml=toml, test_sh=test_sh)
    reward, info = await episode(task_dir, "id -un", trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert reward == 1.0
    assert trial_dir is not None
    assert re.fullmatch(r"grader 755\nroot 7\d5\n", (trial_dir / "verifier/test-stdout.txt").read_text())


SERVICE = """\
[environment.healthcheck]
command = "[ -e /run/serving ] || { setsid bash /usr/local/bin/serve >/dev/null 2>&1 & sleep 0.1; false; }"
interval_sec = 0.1
start_interval_sec = 0.1
start_period_sec = 5
"""


async def test_a_service_of_the_tasks_own_runs_on_with_its_workers(tmp_path: Path) -> None:
    test_sh = """\
#!/bin/bash
is() { if [ "$1" ]; then echo 1; else echo 0; fi; }
echo "{\\"service\\": $(is "$(pgrep -f 'bin/[s]erve')"), \\"policy\\": $(is "$(pgrep -f '[s]leep 1007')")}" \\
    > /logs/verifier/reward.json
"""
    task_dir = write_task(tmp_path / "served", dockerfile=DOCKERFILE, toml=SERVICE, test_sh=test_sh)
    for keeps, policy in ((False, 0.0), (None, 1.0)):
        _, info = await episode(
            task_dir, "setsid sleep 1007 & sleep 0.3", reward_function="max", keep_agent_processes=keeps
        )
        assert info.get("rewards") == {"service": 1.0, "policy": policy}


LEAVINGS = {
    "both files": "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "a link to a directory of its own": (
        "mkdir -p /srv/mine; echo '{\"reward\": 1}' > /srv/mine/reward.json; "
        "rm -rf /logs/verifier; ln -s /srv/mine /logs/verifier"
    ),
    "a file from the future": (
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json; touch -d 2100-01-01 /logs/verifier/*"
    ),
    "a test.sh of its own": "mkdir -p /tests/.hidden; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
}


@pytest.mark.parametrize("leaving", LEAVINGS)
async def test_what_the_policy_left_is_no_verdict(tmp_path: Path, leaving: str) -> None:
    test_sh = "#!/bin/bash\n[ -e /tests/.hidden ] || echo 0 > /logs/verifier/reward.txt\n"
    task_dir = write_task(tmp_path / "planted", test_sh=test_sh)
    reward, info = await episode(task_dir, LEAVINGS[leaving])
    assert (reward, info.get("rewards")) == (0.0, {"reward": 0.0})


async def test_a_broken_tool_keeps_nothing_from_being_emptied(tmp_path: Path) -> None:
    """Where the policy is root and replaces the programs that could clean up, its planted files go all the same."""
    task_dir = write_task(tmp_path / "broken", test_sh="#!/bin/bash\nexit 1\n")
    plant = "echo '{\"reward\": 1}' > /logs/verifier/reward.json; ln -sf /bin/true /usr/bin/find"
    with pytest.raises(VerifierError, match=r"must write"):
        await episode(task_dir, plant)
