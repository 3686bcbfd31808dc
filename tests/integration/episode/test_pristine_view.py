"""A verifier in a pristine view on ``local``: planted files of a root policy are absent, its carried paths there."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, override

import pytest
from harbor.environments.base import ExecResult

from harbor_gym import EndReason
from harbor_gym.checking import CheckPlan, Verdict, check_tasks
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.supervisor import own_ids
from tests.helpers.harbor_trials import graded_in, run_episode
from tests.helpers.paths import ROOT
from tests.helpers.rootless import run_rootless
from tests.helpers.tasks import BASE, PASS_IF_DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

TASKS = ROOT / "tasks"
SRV = (PurePosixPath("/srv"),)
DONE = "echo done > /srv/answer"
FORGED = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"


async def played(task_dir: Path, *keystrokes: str, **settings: Any) -> float:
    """Return the reward of the last phase, one line of keystrokes a phase."""
    ends, _ = await run_episode(task_dir, keystrokes, sandbox="local", **settings)
    return ends[-1][0]


PLANTS = {
    "the shell": f"cp /usr/bin/bash /usr/bin/b; printf '#!/usr/bin/b\\n/usr/bin/b \"$@\"\\n{FORGED}\\n' > /x; "
    "chmod 755 /x; mv /x /usr/bin/bash",
    "a program": f"printf '#!/bin/sh\\n{FORGED}\\necho done\\n' > /usr/local/bin/cat; chmod 755 /usr/local/bin/cat",
    "the reward": f"{FORGED}; chmod 444 /logs/verifier/reward.txt",
    "temporary files": "ln -s /srv /tmp/work",
}


SLOW = PASS_IF_DONE + "sleep 0.2\n[ ! -e /tmp/work ] || echo 1 > /logs/verifier/reward.txt\n"
"""A verifier with the time to be forged, which trusts a file of everybody's."""


@pytest.mark.parametrize("plant", sorted(PLANTS.keys() - {"the reward"}))
async def test_what_a_root_policy_planted_pays_under_harbors_grading(tmp_path: Path, plant: str) -> None:
    """The next test would prove nothing if these were no forgeries."""
    task = write_task(tmp_path / "task", test_sh=SLOW)
    assert await played(task, PLANTS[plant], verify_paths="off") == 1.0


@pytest.mark.parametrize("plant", PLANTS)
async def test_what_a_root_policy_planted_is_not_in_the_view(tmp_path: Path, plant: str) -> None:
    task = write_task(tmp_path / "task", test_sh=SLOW)
    assert await played(task, PLANTS[plant], verify_paths=SRV) == 0.0


async def test_what_counts_is_in_the_view_and_only_that(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    assert await played(task, DONE, verify_paths=SRV) == 1.0
    assert await played(task, DONE, verify_paths=(PurePosixPath("/srv/answer"),)) == 1.0
    assert await played(task, DONE, verify_paths=(PurePosixPath("/opt"),)) == 0.0


async def test_a_path_that_the_policy_removed_or_made_a_link_is_not_the_images_in_the_view(tmp_path: Path) -> None:
    """Else a task that requires a file gone could not be solved, and one that requires it kept could not be failed."""
    dockerfile = "FROM debian:bookworm-slim\nRUN mkdir /srv/d && echo done > /srv/answer && echo done > /srv/d/answer\n"
    there = write_task(tmp_path / "there", dockerfile=dockerfile)
    paths = (PurePosixPath("/srv/answer"),)
    assert await played(there, "true", verify_paths=paths) == 1.0
    assert await played(there, "rm /srv/answer", verify_paths=paths) == 0.0
    assert await played(there, "mv /srv/answer /srv/b; ln -s b /srv/answer", verify_paths=paths) == 0.0
    deep = PASS_IF_DONE.replace("/srv/answer", "/srv/d/answer")
    inside = write_task(tmp_path / "inside", dockerfile=dockerfile, test_sh=deep)
    paths = (PurePosixPath("/srv/d"),)
    assert await played(inside, "true", verify_paths=paths) == 1.0
    assert await played(inside, "mv /srv/d /srv/e; ln -s e /srv/d", verify_paths=paths) == 0.0


async def test_a_kept_service_is_reached_from_the_view(tmp_path: Path) -> None:
    dockerfile = (
        "FROM debian:bookworm-slim\nRUN command -v python3 || { apt-get update; apt-get install -y python3; }\n"
    )
    asks = (
        "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q OK <&3 "
        "&& n=1 || n=0\necho $n >/logs/verifier/reward.txt\n"
    )
    task = write_task(tmp_path / "task", dockerfile=dockerfile, test_sh=asks)
    serve = (
        "setsid python3 -m http.server 8000 >/dev/null 2>&1 </dev/null & "
        "until (: >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.1; done"
    )
    assert await played(task, serve, verify_paths=SRV, keep_agent_processes=True) == 1.0
    assert await played(task, serve, verify_paths=SRV) == 0.0


async def test_each_step_has_a_view_of_its_own_and_the_policys_files_again_after_it(tmp_path: Path) -> None:
    leaves = PASS_IF_DONE + "echo mine > /etc/left; [ ! -e /etc/before ] || echo 0 > /logs/verifier/reward.txt\n"
    names = ("one", "two")
    task = write_task(tmp_path / "steps", test_sh=leaves, toml="".join(f'[[steps]]\nname = "{n}"\n' for n in names))
    (task / "instruction.md").unlink()
    for name in names:
        (task / "steps" / name).mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text("Go on.\n")
    second = "[ -e /etc/before ] && [ ! -e /etc/left ] && [ ! -e /tests/test.sh ] || rm /srv/answer"
    assert await played(task, f"{DONE}; touch /etc/before", second, verify_paths=SRV) == 1.0


class Noting(LocalEnvironment):
    """A local sandbox that notes its calls once the policy's processes are stopped."""

    noted: ClassVar[list[str]] = []

    @override
    async def exec(self, command: str, *args: Any, **settings: Any) -> ExecResult:
        self.noted.append(f"exec {command}")
        return await super().exec(command, *args, **settings)

    @override
    async def exec_pipes(self, command: str, *args: Any, **settings: Any) -> PipedCommand:
        self.noted.append(f"exec_pipes {command}")
        return await super().exec_pipes(command, *args, **settings)

    @override
    async def clean_up(self, work: str, *args: Any, **settings: Any) -> dict[str, Any]:
        self.noted.append(work)
        return await super().clean_up(work, *args, **settings)

    @override
    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        self.noted.append("enter view")
        await super().enter_verifier_view(verify_paths)


@pytest.mark.parametrize("steps", [0, 2])
async def test_no_program_of_the_sandbox_runs_between_the_clean_up_and_the_verifier(tmp_path: Path, steps: int) -> None:
    """All of Harbor's acts in between: it collects artifacts, makes directories, looks up users."""
    Noting.noted.clear()
    dockerfile = f"FROM {BASE}\nRUN useradd dev\nWORKDIR /srv\nRUN chown dev /srv\n"
    toml = '[agent]\nuser = "dev"\n' + "".join(f'[[steps]]\nname = "s{n}"\n' for n in range(steps))
    task = write_task(tmp_path / "task", dockerfile=dockerfile, root_toml='artifacts = ["/srv/answer"]\n', toml=toml)
    for n in range(steps):
        (task / "steps" / f"s{n}").mkdir(parents=True)
        (task / "steps" / f"s{n}" / "instruction.md").write_text("Do it.\n")
    sandbox = f"{__name__}:{Noting.__name__}"
    ends, _ = await run_episode(task, [DONE] * max(1, steps), sandbox=sandbox, verify_paths=SRV)
    assert graded_in(ends) == [{"reward": 1.0}] * max(1, steps)
    noted = Noting.noted
    views = [at for at, what in enumerate(noted) if what == "enter view"]
    assert len(views) == max(1, steps)
    for view in views:
        cleaned = max(at for at in range(view) if noted[at] == "stop")
        verifying = next(at for at in range(view, len(noted)) if "/tests/test.sh" in noted[at])
        assert "stop" in noted[view:verifying], "once more in the view"
        assert not [what for what in noted[cleaned:verifying] if what.startswith("exec")]


SETS_UP = '[metadata]\nverify_paths = ["/srv"]\n'
IMAGE = (
    "FROM debian:bookworm-slim\nRUN useradd --uid 1234 app && mkdir /data /old && echo old > /old/file && "
    "echo old > /etc/replaced && mkdir -p /opt/again && echo old > /opt/again/old && echo old > /usr/local/gone\n"
    "WORKDIR /srv\n"
)


async def last_verdict(task_dir: Path, *keystrokes: str, **settings: Any) -> float | None:
    """Return the last step's reward, one line of keystrokes a step."""
    ends, _ = await run_episode(task_dir, keystrokes, sandbox="local", **settings)
    return graded_in(ends)[-1].get("reward")


def write_set_up(
    task_dir: Path, setup: str, *, toml: str = SETS_UP, more: str = "", test_sh: str = PASS_IF_DONE
) -> Path:
    """Write a task of two steps, the second with a set-up."""
    steps = f'[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n{more}'
    write_task(task_dir, dockerfile=IMAGE, toml=toml + steps, test_sh=test_sh)
    (task_dir / "instruction.md").unlink()
    for name in ("one", "two"):
        (task_dir / "steps" / name / "workdir").mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Go on.\n")
    (task_dir / "steps/two/workdir/setup.sh").write_text(f"set -e\n{setup}")
    (task_dir / "steps/two/workdir/brought").write_text("brought\n")
    return task_dir


def replaced_bash(does: str, *, for_what: str) -> str:
    """Return keys that replace the sandbox's bash by one that does something else where its command has a word."""
    text = f'#!/usr/bin/b\\ncase "$*" in *{for_what}*) {does}; exit 0;; esac\\nexec /usr/bin/b "$@"\\n'
    return f"cp /usr/bin/bash /usr/bin/b; printf '{text}' > /x; chmod 755 /x; mv /x /usr/bin/bash"


SPOILS = replaced_bash("echo done > /srv/answer", for_what="setup.sh")
"""A set-up that never runs, and an answer that nobody gave."""


async def test_what_a_replaced_shell_does_to_a_later_set_up_under_harbors_grading(tmp_path: Path) -> None:
    """The next test would prove nothing if this were no forgery."""
    task = write_set_up(tmp_path / "task", "echo secret > /srv/question\n", test_sh=PASS_IF_DONE)
    assert await last_verdict(task, SPOILS, "true", verify_paths="off") == 1.0


async def test_a_policys_shell_runs_no_later_set_up(tmp_path: Path) -> None:
    judge = PASS_IF_DONE + "[ -e /srv/question ] && [ -e /srv/brought ] || echo 0.5 > /logs/verifier/reward.txt\n"
    task = write_set_up(tmp_path / "task", "echo secret > /srv/question\n", test_sh=judge)
    assert await last_verdict(task, SPOILS, "true") == 0.0
    assert await last_verdict(task, SPOILS, DONE) == 1.0


async def test_a_later_steps_healthcheck_runs_none_either(tmp_path: Path) -> None:
    spoils = replaced_bash("echo done > /srv/answer", for_what="/srv/healthy")
    more = '[steps.healthcheck]\ncommand = "test -e /srv/healthy"\n'
    task = write_set_up(tmp_path / "task", "touch /srv/healthy\n", more=more)
    assert await last_verdict(task, spoils, "true", verify_paths="off") == 1.0
    assert await last_verdict(task, spoils, "true") == 0.0


SETUP = """\
mkdir -p /data/deep/er /opt/new
echo set > /data/file; chown app:app /data/file; chmod 4640 /data/file
echo set > /data/deep/er/file; chmod 711 /data/deep; chown app /data/deep
ln -s ../deep/er/file /data/deep/link
rm -r /old; rm /usr/local/gone
echo set > /etc/replaced; rm -r /opt/again; mkdir /opt/again; echo set > /opt/again/new
mkfifo /data/fifo
truncate -s 20G /data/sparse; echo end >> /data/sparse
echo set > /opt/new/file; useradd --uid 4321 late
touch /tmp/of-the-set-up
[ "$(cat /srv/kept)" = mine ]; [ ! -e /etc/mine ]; echo seen > /srv/seen
"""

LOOKS = (
    "[ $(stat -c %U:%G:%a /data/file) = app:app:4640 ]",
    "[ $(stat -c %U:%a /data/deep) = app:711 ]",
    "[ $(cat /data/file /data/deep/er/file /data/deep/link /etc/replaced /opt/new/file | sort -u) = set ]",
    "[ $(readlink /data/deep/link) = ../deep/er/file ]",
    "[ ! -e /old ]",
    "[ ! -e /usr/local/gone ]",
    "[ $(ls /opt/again) = new ]",
    "[ -p /data/fifo ]",
    "[ $(stat -c %s /data/sparse) = 21474836484 ] && [ $(tail -c 4 /data/sparse) = end ]",
    "[ $(id -u late) = 4321 ]",
    "[ ! -e /tmp/of-the-set-up ]",
    "[ $(cat /srv/seen) = seen ] && [ $(cat /srv/brought) = brought ]",
    "[ $(cat /srv/kept /etc/mine /opt/new/mine | sort -u) = mine ]",
    "[ $(stat -c %a /opt/new) = 755 ]",
)
MINE = "echo mine | tee /srv/kept /etc/mine; mkdir -m 700 /opt/new; echo mine > /opt/new/mine; chmod 700 /opt/again"


def answers(looks: Sequence[str]) -> str:
    """Return keys that write the answer if all the searched texts are found, and all else to a file."""
    found = " ".join(f"{{ {look}; }} || echo {number} >> /srv/missed;" for number, look in enumerate(looks))
    return f"{found} [ -e /srv/missed ] || {DONE}"


@pytest.mark.parametrize("has_own_ids", [True, False])
async def test_what_a_later_set_up_wrote_is_there_for_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own_ids: bool
) -> None:
    if not has_own_ids:
        monkeypatch.setattr(own_ids, "refusal", lambda: "the test refuses")
    judge = PASS_IF_DONE + "[ ! -e /srv/missed ] || { cat /srv/missed; }\n"
    task = write_set_up(tmp_path / "task", SETUP, test_sh=judge)
    reward = await last_verdict(task, MINE, answers(LOOKS), trials_dir=tmp_path / "trials")
    outputs = [path.read_text() for path in (tmp_path / "trials").rglob("test-stdout.txt")]
    assert reward == 1.0, outputs


TRAPS = {
    "a link to a directory": "rm -r /data; mkdir /trap; ln -s /trap /data",
    "a link to a file": "echo trap > /trap; ln -s /trap /data/file",
    "a file in place of a directory": "rm -r /data; touch /data",
    "a directory in place of a file": "mkdir -p /data/file/deep; touch /data/file/deep/file",
    "a FIFO": "mkfifo /data/file",
    "a hard link": "echo trap > /trap; ln /trap /data/file",
    "a link in place of a link": "mkdir /trap; mkdir /data/deep; ln -s /trap /data/deep/link",
    "a link to the workdir's": "cp -a /srv /trap; rm -r /srv; ln -s /trap /srv; cd /",
}
_SHORT = "".join(SETUP.splitlines(keepends=True)[:4])
SPRUNG = (
    "[ -d /data ] && [ ! -L /data ] && [ -f /data/file ] && [ $(cat /data/file) = set ]",
    "[ $(readlink /data/deep/link) = ../deep/er/file ]",
    "[ -d /srv ] && [ ! -L /srv ]",
    '[ ! -d /trap ] || [ -z "$(find /trap -type f)" ]',
    "[ ! -f /trap ] || [ $(cat /trap) = trap ]",
)


@pytest.mark.parametrize("trap", TRAPS)
async def test_through_no_trap_of_the_policys_is_anything_written(tmp_path: Path, trap: str) -> None:
    task = write_set_up(tmp_path / "task", _SHORT)
    assert await last_verdict(task, TRAPS[trap], f"cd /; {answers(SPRUNG)}") == 1.0


async def test_a_set_up_for_which_the_policy_left_no_room_is_the_policys_failure(tmp_path: Path) -> None:
    task = write_set_up(
        tmp_path / "task", "setsid tail -f /data/big >/dev/null 2>&1 & head -c 20M /dev/zero > /data/big\n"
    )
    fills = f"{DONE}; head -c 35M /dev/zero > /fill"
    ends, _ = await run_episode(task, [fills, "true"], sandbox="local", sandbox_options={"override_storage_mb": 64})
    _, done, info = ends[-1]
    assert (done, info.get("end_reason")) == (True, EndReason.SANDBOX_BROKEN)
    assert "the files of its step's set-up: /data/big: No space left on device" in (info.get("breakage") or ""), info
    assert info.get("episode_reward") == 0.5


@pytest.mark.parametrize("keeps", [False, True])
async def test_what_a_later_set_up_started_serves_the_policy_and_ends_before_grading_unless_processes_are_kept(
    tmp_path: Path, keeps: bool
) -> None:
    loop = "for n in {1..3000}; do cat file >> /srv/log; sleep 0.02; done"
    serve = f"echo served > /data/file; cd /data\nsetsid bash -c '{loop}' >/dev/null 2>&1 &\n"
    judge = "#!/bin/bash\nrm -f /srv/log; sleep 0.5; [ -s /srv/log ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    toml = f"{SETS_UP}keep_agent_processes = {str(keeps).lower()}\n"
    task = write_set_up(tmp_path / "task", serve, toml=toml, test_sh=judge)
    waits = "until [ -s /srv/log ]; do sleep 0.05; done"
    assert await last_verdict(task, "true", f"{waits}; rm /srv/log; {waits}") == float(keeps)


@pytest.mark.slow
async def test_an_ordinary_users_later_set_up_is_the_same() -> None:
    rewards = json.loads((await run_rootless("-m", __name__)).stdout.splitlines()[-1])
    assert rewards == {"spoilt": 0.0, "all": 1.0, **dict.fromkeys(TRAPS, 1.0)}


async def _rewards() -> dict[str, float | None]:
    traps = {name: (_SHORT, trap, f"cd /; {answers(SPRUNG)}") for name, trap in TRAPS.items()}
    cases = {"spoilt": ("true\n", SPOILS, "true"), "all": (SETUP, MINE, answers(LOOKS)), **traps}
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: await last_verdict(write_set_up(Path(folder) / f"task-{number}", setup), *scripts)
            for number, (name, (setup, *scripts)) in enumerate(cases.items())
        }


async def test_a_check_proposes_the_paths_and_grades_both_views(tmp_path: Path, plan: CheckPlan) -> None:
    (check,) = await check_tasks([write_task(tmp_path / "task")], plan)
    assert check.verdict is check.harbors_verdict is Verdict.FORGEABLE
    assert {"programs", "shell"} <= set(check.tricks)
    assert check.pristine is not None, check.error
    assert check.pristine.paths == ("/srv",)
    assert (check.pristine.verdict, check.pristine.oracle, check.pristine.forged) == (Verdict.OK, 1.0, 0.0)


async def test_the_task_of_the_training_recipe_is_forgeable_only_under_harbors_grading(plan: CheckPlan) -> None:
    (check,) = await check_tasks([TASKS / "devops_task"], plan)
    assert (check.verdict, check.harbors_verdict) == (Verdict.OK, Verdict.FORGEABLE), check.error
    assert set(check.tricks) - {"spawning_shell"} == {"shell"}, "what that one spawns may come too late"


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asyncio.run(_rewards()))}\n")
