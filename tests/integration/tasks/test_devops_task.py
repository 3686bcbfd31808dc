"""The devops task: its verifier rewards a repaired service and nothing else."""

import asyncio
import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from harbor.models.task.task import Task

from harbor_gym.sandboxes.images.build import ImageSource, build_image
from harbor_gym.sandboxes.tools import contained
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


@pytest.fixture(scope="module")
def layers() -> str:
    """Return the directories of the task's image, as a mount of an overlay names them."""
    require_engine("local")
    image = asyncio.run(build_image(ImageSource(TASK_DIR / "environment")))
    return ":".join(map(str, image.directories))


_ENTER = """\
mount -t tmpfs none "$1"; cd "$1"; mkdir upper work root
mount -t overlay -o "lowerdir=$2,upperdir=upper,workdir=work" none root
mkdir root/tests; mount --rbind /dev root/dev; mount -t proc none root/proc; mount --bind "$3" root/tests
exec env -i PATH="$PATH" HOME=/root chroot root bash -c "$4"
"""
_PLAY = "bash >/dev/null 2>&1; /tests/test.sh; exec /bin/cat /logs/verifier/reward.txt"


def _run(layers: str, place: Path, command: str, script: str) -> str:
    """Run a command in a fresh root of the image, with processes of its own and without a network."""
    words = (*contained(), "--net", "bash", "-ec", _ENTER, "bash", place, layers, TASK_DIR / "tests", command)
    done = subprocess.run(words, input=script, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def _grade(layers: str, place: Path, agent_script: str) -> Grade:
    """Run a script as the agent would, then the verifier."""
    output, _, reward = _run(layers, place, _PLAY, agent_script).strip().rpartition("\n")
    return Grade(reward, f"{output}\n")


@pytest.mark.local
def test_the_solution_is_rewarded(layers: str, tmp_path: Path) -> None:
    grade = _grade(layers, tmp_path, (TASK_DIR / "solution" / "solve.sh").read_text())
    assert grade.reward == "1", grade.output


@pytest.mark.local
@pytest.mark.parametrize("script", RIGHT.values(), ids=RIGHT.keys())
def test_every_honest_repair_is_rewarded(layers: str, tmp_path: Path, script: str) -> None:
    assert _grade(layers, tmp_path, script) == Grade("1", "reward 1, failed checks 0\n")


@pytest.mark.local
@pytest.mark.parametrize(("script", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_end_state_is_not_rewarded(layers: str, tmp_path: Path, script: str, reason: str) -> None:
    grade = _grade(layers, tmp_path, script)
    assert grade.reward == "0"
    assert re.search(r"^FAIL: .*" + re.escape(reason), grade.output, re.MULTILINE), grade.output


@pytest.mark.local
def test_appctl_names_the_faults_one_after_another(layers: str, tmp_path: Path) -> None:
    script = (
        f"appctl start; {PID}; appctl start; {KEY}; appctl start; {SPOOL}; appctl start; appctl status; appctl stop"
    )
    assert _run(layers, tmp_path, "bash; :", script).splitlines() == [
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
