"""A verifier in a pristine view on ``local``: what a root policy planted is not there, and what counts is."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, override

import pytest
from harbor.environments.base import ExecResult

from harbor_gym.checking import CheckPlan, Verdict, check_tasks
from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.local import LocalEnvironment
from harbor_gym.sandboxes.piped import PipedCommand
from tests.helpers.engines import require_engine
from tests.helpers.harbor_trials import run_episode
from tests.helpers.paths import ROOT
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
    """What the next test shows would be worth nothing if these were no forgeries."""
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
    """A local sandbox that notes what is asked of it once the policy's processes are stopped."""

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
    """Whatever Harbor does in between: it collects artifacts, makes directories, looks up users."""
    Noting.noted.clear()
    dockerfile = f"FROM {BASE}\nRUN useradd dev\nWORKDIR /srv\nRUN chown dev /srv\n"
    toml = '[agent]\nuser = "dev"\n' + "".join(f'[[steps]]\nname = "s{n}"\n' for n in range(steps))
    task = write_task(tmp_path / "task", dockerfile=dockerfile, root_toml='artifacts = ["/srv/answer"]\n', toml=toml)
    for n in range(steps):
        (task / "steps" / f"s{n}").mkdir(parents=True)
        (task / "steps" / f"s{n}" / "instruction.md").write_text("Do it.\n")
    sandbox = f"{__name__}:{Noting.__name__}"
    ends, _ = await run_episode(task, [DONE] * max(1, steps), sandbox=sandbox, verify_paths=SRV)
    assert [reward for reward, _, _ in ends] == [1.0] * max(1, steps)
    stops = [at for at, what in enumerate(Noting.noted) if what == "stop"]
    firsts = [at for at in stops if "enter view" in Noting.noted[at : at + 12]]
    assert len(firsts) >= max(1, steps)
    for first in firsts:
        verifying = next(at for at in range(first, len(Noting.noted)) if "/tests/test.sh" in Noting.noted[at])
        between = Noting.noted[first:verifying]
        assert between.count("stop") == 2, "once more in the view"
        assert not [what for what in between if what.startswith("exec")]


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    require_engine("local")
    return CheckPlan(environment_config("local"), tmp_path / "trials", repeat=1)


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
    assert check.tricks == ("shell", "spawning_shell")
