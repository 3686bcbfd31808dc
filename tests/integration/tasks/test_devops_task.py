"""The devops task: its verifier rewards a repaired service and nothing else."""

import hashlib
import re
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from harbor.models.task.task import Task

from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC

TASK_DIR = ROOT / "tasks" / "devops_task"
PROGRAMS = TASK_DIR / "environment" / "app"
VERIFIER = TASK_DIR / "tests" / "test.sh"

PID = "rm /srv/app/app.pid"
KEY = "chmod 600 /etc/app/key"
SPOOL = "sed -i s/ap$/app/ /etc/app/app.conf"
REPAIR = f"{PID}; {KEY}; {SPOOL}"

RIGHT = {
    "repaired, never started": REPAIR,
    "another order, started, running": f"{SPOOL}; {KEY}; {PID}; appctl start",
    "started and stopped": f"{REPAIR}; appctl start; sleep 0.5; appctl stop",
    "killed while running": f"{REPAIR}; appctl start; pkill -9 -f /srv/app/serve",
    "key read-only": f"{PID}; chmod 400 /etc/app/key; {SPOOL}",
    "setting overridden by a later line": f"{PID}; {KEY}; echo spool=/var/spool/app >> /etc/app/app.conf; appctl start",
    "comments in the settings": f"{REPAIR}; printf '\\n# mended' >> /etc/app/app.conf",
    "detour undone": f"{PID}; {KEY}; mkdir /var/spool/ap; appctl start; {SPOOL}",
    "settings written anew": f"{PID}; {KEY}; sed s/ap$/app/ /etc/app/app.conf > /tmp/c; mv /tmp/c /etc/app/app.conf",
    "harmless leftovers in the log directory": f"{REPAIR}; mkdir -p /logs/verifier/reward.txt/x",
}

PLANT = "printf '#!/bin/bash\\nexit 0\\n' > {0}; chmod 755 {0}"
WRONG = {
    "nothing": ("", "has owner and mode '0 644'"),
    "forged reward": (
        "mkdir -p /logs/verifier; cd /logs/verifier; echo 1 > reward.txt; echo 1 > reward.json",
        "spool is '/var/spool/ap'",
    ),
    "reward file is a link": (
        "mkdir -p /logs/verifier; echo 1 > /tmp/one; ln -s /tmp/one /logs/verifier/reward.txt",
        "spool is",
    ),
    "log directory is a link": (
        "mkdir -p /logs /tmp/v; echo 1 > /tmp/v/reward.txt; rm -rf /logs/verifier; ln -s /tmp/v /logs/verifier",
        "spool is",
    ),
    "pid file left": (f"{KEY}; {SPOOL}", "running already? /srv/app/app.pid has pid 1"),
    "pid file names another live process": (
        f"{REPAIR}; setsid sleep 60 & echo $! > /srv/app/app.pid",
        "running already?",
    ),
    "key left open": (f"{PID}; {SPOOL}", "has owner and mode '0 644'"),
    "key opened wide": (f"{PID}; chmod 777 /etc/app/key; {SPOOL}", "has owner and mode '0 777'"),
    "key open to a group": (f"{PID}; chmod 640 /etc/app/key; {SPOOL}", "has owner and mode '0 640'"),
    "key given away": (f"{REPAIR}; chown nobody /etc/app/key", "has owner and mode '65534 600'"),
    "key deleted": (f"{REPAIR}; rm /etc/app/key", "/etc/app/key is missing"),
    "key made up": (f"{REPAIR}; echo secret > /etc/app/key", "/etc/app/key was changed"),
    "key linked": (f"{REPAIR}; mv /etc/app/key /tmp; ln -s /tmp/key /etc/app/key", "not a plain file"),
    "spool left": (f"{PID}; {KEY}", "spool is '/var/spool/ap'"),
    "wrong spool created": (f"{PID}; {KEY}; mkdir /var/spool/ap; appctl start", "spool is '/var/spool/ap'"),
    "wrong spool linked": (f"{PID}; {KEY}; ln -s app /var/spool/ap; appctl start", "spool is '/var/spool/ap'"),
    "every path edited": (f"{PID}; {KEY}; sed -i s/ap/app/ /etc/app/app.conf", "log is '/var/log/appp.log'"),
    "settings deleted": (f"{REPAIR}; rm /etc/app/app.conf", "app.conf is missing"),
    "setting lost": (f"{REPAIR}; sed -i /^log/d /etc/app/app.conf", "log is ''"),
    "setting changed": (f"{REPAIR}; sed -i s/=ans/=txt/ /etc/app/app.conf", "suffix is 'txt'"),
    "setting added": (f"{REPAIR}; echo debug=1 >> /etc/app/app.conf", "unknown setting: debug=1"),
    "garbage in the settings": (f"{REPAIR}; echo fixed >> /etc/app/app.conf", "no setting: fixed"),
    "appctl replaced": (f"{REPAIR}; {PLANT.format('/usr/local/bin/appctl')}", "appctl was changed"),
    "appctl's checks cut out": (f"sed -i '/^ *check$/d' /usr/local/bin/appctl; {KEY}; {SPOOL}", "appctl was changed"),
    "service replaced": (f"{REPAIR}; {PLANT.format('/srv/app/serve')}", "/srv/app/serve was changed"),
    "service not executable": (f"{REPAIR}; chmod 644 /srv/app/serve", "/srv/app/serve is not executable"),
    "service deleted": (f"rm -r /srv/app; {KEY}; {SPOOL}", "/srv/app/serve is missing"),
    "waiting request deleted": (f"{REPAIR}; rm /var/spool/app/1041.req", "the request 1041 is lost"),
    "waiting request changed": (f"{REPAIR}; echo x > /var/spool/app/1042.req", "1042.req was changed"),
    "answer made up": (
        f"{REPAIR}; cd /var/spool/app; rm 1041.req; echo 0 > 1041.ans",
        "the answer to the request 1041 is wrong",
    ),
    "spool is a link": (f"{REPAIR}; mv /var/spool/app /srv/s; ln -s /srv/s /var/spool/app", "not a directory"),
    "planted programs": (
        "for p in sha256sum stat cat grep tr mv rm; do " + PLANT.format("/usr/local/bin/$p") + "; done",
        "has owner and mode '0 644'",
    ),
    "preloaded library": (f"{REPAIR}; touch /etc/ld.so.preload", "/etc/ld.so.preload exists"),
}


@dataclass(frozen=True)
class Grade:
    reward: str
    output: str


def _docker(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    require_engine("docker")
    # A name and an identity that no other test's image has: removing theirs must not take this one.
    tag = f"harbor-gym-test-devops-task-{uuid.uuid4().hex[:12]}"
    _docker("build", "--quiet", "--label", f"test={tag}", "--tag", tag, str(TASK_DIR / "environment"))
    yield tag
    _docker("image", "rm", "--force", tag)


_PLAY = "bash >/dev/null 2>&1; /tests/test.sh; exec /bin/cat /logs/verifier/reward.txt"


def _grade(image: str, agent_script: str) -> Grade:
    """Run a script as the agent would, then the verifier; both in a fresh container without a network."""
    where = ("--rm", "--init", "--interactive", "--network=none", "--volume", f"{TASK_DIR / 'tests'}:/tests:ro")
    output, _, reward = _docker("run", *where, image, "bash", "-c", _PLAY, stdin=agent_script).strip().rpartition("\n")
    return Grade(reward, f"{output}\n")


@pytest.mark.docker
def test_the_solution_is_rewarded(image: str) -> None:
    grade = _grade(image, (TASK_DIR / "solution" / "solve.sh").read_text())
    assert grade.reward == "1", grade.output


@pytest.mark.docker
@pytest.mark.parametrize("script", RIGHT.values(), ids=RIGHT.keys())
def test_every_honest_repair_is_rewarded(image: str, script: str) -> None:
    assert _grade(image, script) == Grade("1", "reward 1, failed checks 0\n")


@pytest.mark.docker
@pytest.mark.parametrize(("script", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_end_state_is_not_rewarded(image: str, script: str, reason: str) -> None:
    grade = _grade(image, script)
    assert grade.reward == "0"
    assert re.search(r"^FAIL: .*" + re.escape(reason), grade.output, re.MULTILINE), grade.output


@pytest.mark.docker
def test_appctl_names_the_faults_one_after_another(image: str) -> None:
    script = (
        f"appctl start; {PID}; appctl start; {KEY}; appctl start; {SPOOL}; appctl start; appctl status; appctl stop"
    )
    printed = _docker("run", "--rm", "--init", "--interactive", "--network=none", image, "bash", stdin=script)
    assert printed.splitlines() == [
        "app: running already? /srv/app/app.pid has pid 1",
        "app: /etc/app/key has mode 644, not 600",
        "app: no spool /var/spool/ap",
        "app: up, spool /var/spool/app",
        "app: up, spool /var/spool/app",
        "app: down",
    ]


@pytest.mark.parametrize("name", ["appctl", "serve", "key"])
def test_the_verifier_knows_the_original_files(name: str) -> None:
    checksum = hashlib.sha256((PROGRAMS / name).read_bytes()).hexdigest()
    assert f"readonly {name.upper()}_SHA256={checksum}\n" in VERIFIER.read_text()


def test_harbor_reads_the_task() -> None:
    task = Task(TASK_DIR)
    assert task.name == "harbor-gym/devops-task"
    assert task.config.agent.timeout_sec == 600
    assert task.config.verifier.timeout_sec == 60


def test_the_instruction_is_short() -> None:
    assert len((TASK_DIR / "instruction.md").read_text().split()) <= 120
