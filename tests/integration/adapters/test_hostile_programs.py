"""The verifier runs the policy's program, as most do: what that does to the grading is the policy's failure.

Each row is a program of which the task's own verifier, in an untouched sandbox, knows nothing.
"""

import asyncio
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason, Rollout
from harbor_gym.episode.grading import untouched
from harbor_gym.errors import VerifierError
from tests.helpers.tasks import BASE, write_task
from tests.integration.adapters.test_guarded_grading import DOORS, play

pytestmark = [pytest.mark.usefixtures("nothing_left")]

RUNS_THE_PROGRAM = """\
#!/bin/bash
cd /srv
if [ -x program ]; then ./program; fi
if [ "$(cat answer 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
DIES = "; kill -9 $PPID\n"
"""A program's end, after which the verifier writes nothing."""

VERDICT, JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"

VOID = {
    "kills its parent": DIES.lstrip("; "),
    "kills everything": "kill -9 -1; kill -9 $PPID\n",
    "removes the directory": f"rm -rf /logs/verifier{DIES}",
    "a file in place of the directory": f"rm -rf /logs/verifier; echo > /logs/verifier{DIES}",
    "a link in place of the directory": f"rm -rf /logs/verifier; ln -s /srv /logs/verifier{DIES}",
    "a directory": f"mkdir {VERDICT}{DIES}",
    "a directory of JSON": f"mkdir {JSON}\n",
    "a FIFO": f"mkfifo {VERDICT}{DIES}",
    "a FIFO of JSON": f"mkfifo {JSON}; mkfifo {VERDICT}{DIES}",
    "a link to a file of the system": f"ln -s /etc/hostname {VERDICT}{DIES}",
    "a link to itself": f"ln -s reward.txt {VERDICT}{DIES}",
    "an empty file": f": > {VERDICT}{DIES}",
    "no number": f"echo nan > {VERDICT}{DIES}",
    "infinity": f"echo -inf > {VERDICT}{DIES}",
    "a number beyond": f"echo 1e400 > {VERDICT}{DIES}",
    "a text": f"yes text | head -c 100000 > {VERDICT}{DIES}",
    "no UTF-8": f"printf '\\377\\376' > {VERDICT}{DIES}",
    "a hole of 600 MB": f"truncate -s 600M {VERDICT}{DIES}",
    "a hole of 600 MB in JSON": f"truncate -s 600M {JSON}\n",
    "an integer of 5000 digits": f"printf '{{\"reward\": %05000d}}' 1 | tr 0 1 > {JSON}\n",
    "an integer of 400 digits": f"printf '{{\"reward\": %0400d}}' 1 | tr 0 1 > {JSON}\n",
    "JSON with NaN": f"""echo '{{"reward": NaN}}' > {JSON}\n""",
    "JSON with a number beyond": f"""echo '{{"reward": 1e400}}' > {JSON}\n""",
    "deep JSON": f"for i in $(seq 9); do printf '[%.0s' $(seq 9999); done > {JSON}\n",
    "a list": f"echo '[1]' > {JSON}\n",
    "a number as JSON": f"echo 1 > {JSON}\n",
    "a text as a value": f"""echo '{{"reward": "1"}}' > {JSON}\n""",
    "half a character as a key": f"""printf '{{"\\\\ud800": 1, "reward": 1}}' > {JSON}\n""",
    "no keys": f"echo '{{}}' > {JSON}\n",
    "other keys": f"""echo '{{"a": 1, "b": 1}}' > {JSON}\n""",
    "very many keys": f"(printf '{{'; seq -f '\"%g\": 1,' 20000; printf '\"reward\": 1}}') > {JSON}\n",
    "names that are no text, deep": (
        "cd /logs/verifier; for i in $(seq 99); do mkdir $'\\377' && cd $'\\377' || break; done" + DIES
    ),
    "a full disk": "cat /dev/zero > /tmp/z; while echo >> /tmp/y; do :; done\n",
    "endless output": "exec yes\n",
    "no end": "exec sleep 1000\n",
}
"""Programs that leave no usable verdict."""

HARMLESS = {
    "names that are no text": "touch /logs/verifier/$'\\377\\n\\e[31m'\n",
    "a verdict of its own name": "ln -s reward.txt /logs/verifier/other.txt\n",
}
"""Programs beside which the verdict stands."""

TOML = "[environment]\nstorage_mb = 64\n[verifier]\ntimeout_sec = 20.0\n"
USER = TOML.replace("[verifier]", '[agent]\nuser = "dev"\n[verifier]\nuser = "dev"')
DOCKERFILE = f"FROM {BASE}\nRUN useradd --create-home dev && install -d -o dev /srv\nWORKDIR /srv\n"
QUICK = TOML.replace("20.0", "3.0")

NEED_ROOT = ("in place of the directory", "removes the directory", "kills everything")


def program(text: str) -> str:
    """Return keystrokes that write the program and the answer."""
    return f"echo done > answer; printf %s {shlex.quote(f'#!/bin/bash\n{text}')} > program; chmod +x program\n"


def write(task_dir: Path, name: str, toml: str) -> Path:
    text = toml.replace("20.0", "3.0") if name == "no end" else toml
    return write_task(task_dir, dockerfile=DOCKERFILE, test_sh=RUNS_THE_PROGRAM, toml=text)


async def attack(door: str, task_dir: Path, text: str, **settings: Any) -> Rollout:
    return await play(door, task_dir, program(text), **settings)


def assert_failed(rollout: Rollout) -> None:
    assert (rollout.reward, rollout.error, rollout.end_reason) == (0.0, None, EndReason.SANDBOX_BROKEN)
    last = rollout.transcript.last_info
    assert last is not None
    assert 0 < len(last.get("breakage", "")) < 5000


@pytest.mark.local
@pytest.mark.parametrize("name", VOID)
async def test_a_program_that_voids_its_verdict_has_failed(name: str, tmp_path: Path) -> None:
    assert_failed(await attack("own loop", write(tmp_path / "task", name, TOML), VOID[name]))


@pytest.mark.local
@pytest.mark.parametrize("name", [name for name in VOID if not name.endswith(NEED_ROOT)])
async def test_an_ordinary_users_program_fares_no_better(name: str, tmp_path: Path) -> None:
    assert_failed(await attack("own loop", write(tmp_path / "task", name, USER), VOID[name]))


@pytest.mark.local
@pytest.mark.parametrize(
    "name", ["kills everything", "a directory", "an integer of 400 digits", "a hole of 600 MB", "other keys", "no end"]
)
@pytest.mark.parametrize("door", [door for door in DOORS if door != "own loop"])
async def test_an_agents_program_fares_no_better(door: str, name: str, tmp_path: Path) -> None:
    assert_failed(await attack(door, write(tmp_path / "task", name, TOML), VOID[name]))


@pytest.mark.local
@pytest.mark.parametrize("name", HARMLESS)
async def test_what_leaves_the_verdict_is_graded(name: str, tmp_path: Path) -> None:
    rollout = await attack("own loop", write(tmp_path / "task", name, TOML), HARMLESS[name])
    assert (rollout.reward, rollout.error) == (1.0, None)


@pytest.mark.local
@pytest.mark.parametrize("name", ["a directory", "a link in place of the directory", "deep JSON", "other keys"])
async def test_in_a_pristine_view_it_is_the_same(name: str, tmp_path: Path) -> None:
    task = write(tmp_path / "task", name, f'{TOML}[metadata]\nverify_paths = ["/srv"]\n')
    assert_failed(await attack("own loop", task, VOID[name]))


@pytest.mark.local
@pytest.mark.parametrize("name", ["kills its parent", "a directory", "an integer of 400 digits", "other keys"])
@pytest.mark.parametrize("door", ["own loop", "agent"])
async def test_a_separate_verifier_that_runs_the_program_is_no_other(door: str, name: str, tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "task",
        dockerfile=DOCKERFILE,
        test_sh=RUNS_THE_PROGRAM,
        root_toml='artifacts = ["/srv"]\n',
        toml='[verifier]\nenvironment_mode = "separate"\n',
    )
    (task / "tests" / "Dockerfile").write_text(f"FROM {BASE}\nCOPY test.sh /tests/test.sh\nWORKDIR /srv\n")
    assert_failed(await attack(door, task, VOID[name]))


@pytest.mark.local
async def test_no_more_of_a_reward_file_than_its_reader_takes_is_transferred(tmp_path: Path) -> None:
    task, kept = write(tmp_path / "task", "", TOML), tmp_path / "trials"
    rollout = await attack("own loop", task, VOID["a hole of 600 MB"], trials_dir=kept)
    assert_failed(rollout)
    (file,) = kept.glob("*/verifier/reward.txt")
    assert file.stat().st_size == (1 << 20) + 1


@pytest.mark.local
@pytest.mark.parametrize("door", DOORS)
async def test_a_verifier_that_never_gives_a_verdict_is_the_tasks_and_is_asked_once(
    door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, untouched.__name__)
    task = write_task(tmp_path / "task", test_sh="#!/bin/bash\necho nan > /logs/verifier/reward.txt\n")
    for _ in range(2):
        rollout = await play(door, task, "true\n")
        assert isinstance(rollout.error, VerifierError)
        assert rollout.reward is None
    assert [record.levelname for record in caplog.records if record.name == untouched.__name__] == ["INFO", "WARNING"]


@pytest.mark.local
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["kills its parent", "other keys"])
async def test_who_masks_ambiguous_failures_asks_nobody(
    door: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, untouched.__name__)
    task = write(tmp_path / "task", name, TOML)
    rollout = await attack(door, task, VOID[name], ambiguous_failures="infrastructure")
    assert isinstance(rollout.error, VerifierError)
    assert untouched.__name__ not in {record.name for record in caplog.records}


@pytest.mark.local
async def test_episodes_that_fail_at_once_ask_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, untouched.__name__)
    task = write(tmp_path / "task", "", TOML)
    async with asyncio.TaskGroup() as group:
        playing = [group.create_task(attack("own loop", task, VOID["a directory"])) for _ in range(3)]
    for each in playing:
        assert_failed(each.result())
    assert len([record for record in caplog.records if record.name == untouched.__name__]) == 1


ON_DOCKER = (
    "kills everything",
    "kills its parent",
    "a directory",
    "a FIFO of JSON",
    "a hole of 600 MB",
    "an integer of 400 digits",
)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("name", ON_DOCKER)
async def test_on_docker_it_is_the_same(name: str, tmp_path: Path) -> None:
    toml = '[environment]\nnetwork_mode = "no-network"\n'
    task = write_task(tmp_path / "task", dockerfile=DOCKERFILE, test_sh=RUNS_THE_PROGRAM, toml=toml)
    assert_failed(await attack("own loop", task, VOID[name], sandbox="docker"))


@pytest.mark.apptainer
@pytest.mark.slow
@pytest.mark.parametrize("name", ["kills everything", "a directory", "a hole of 600 MB in JSON"])
async def test_in_apptainer_it_is_the_same(name: str, tmp_path: Path) -> None:
    assert_failed(await attack("own loop", write(tmp_path / "task", name, TOML), VOID[name], sandbox="apptainer"))
