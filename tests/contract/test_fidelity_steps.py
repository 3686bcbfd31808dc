"""The declarations of each step of a multi-step task hold in an episode as in Harbor's own trial."""

import shlex
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalEnvConfig
from harbor_gym.errors import VerifierError
from tests.helpers.harbor_trials import COMPLETE, graded_in, instructions_of, rewards_of, run_episode, run_trial
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

ROOT = 'artifacts = ["/srv/log"]\n'

# A step's verifier does not inherit the task's time limit: Harbor's default of ten minutes stands before it.
TOML = """\
[agent]
user = "dev"
[verifier]
user = "grader"
timeout_sec = 0.001
env = { SHARED = "of all" }
[environment]
env = { PLAIN = "one two" }
[[steps]]
name = "inherits"
artifacts = ["/srv/mine"]
[steps.verifier.env]
STEP = "inherits"
[steps.healthcheck]
command = "id -un > /srv/health.inherits"
[[steps]]
name = "own"
artifacts = [{ source = "/srv/notes", destination = "kept/notes", exclude = ["*.tmp"] }]
[steps.agent]
user = "ops"
[steps.verifier]
user = "root"
timeout_sec = 300
env = { STEP = "own", SHARED = "its own" }
[steps.healthcheck]
command = "test -e /srv/tried || { touch /srv/tried; exit 1; }; id -un > /srv/health.own"
interval_sec = 0.05
[[steps]]
name = "apart"
artifacts = ["/srv/agent.apart"]
[steps.verifier]
environment_mode = "separate"
env = { STEP = "apart" }
"""

JUDGE = """\
#!/bin/bash
. /tests/lib.sh
{
    echo "verifier $(id -un) in $PWD: $STEP, $SHARED, $PLAIN"
    for file in agent health setup; do echo "$file $(cat "/srv/$file.$STEP" 2>/dev/null)"; done
    echo "tests $(cd /tests && echo *)"
} > /logs/verifier/facts
reward 1
"""

ACT = 'echo "$(id -un) in $PWD: $PLAIN, sees $(find /tests /logs/verifier -type f 2>&1 | grep -c [.])" > /srv/agent.{}'

SCRIPTS = [
    f"{ACT.format('inherits')}; echo one >> /srv/log; echo my own > /srv/mine",
    f"{ACT.format('own')}; echo two >> /tmp/log; mkdir /srv/notes; touch /srv/notes/{{a.txt,b.tmp}}",
    f"{ACT.format('apart')}; touch /srv/left-behind",
]

FACTS = {
    "inherits": """\
verifier grader in /srv: inherits, of all, one two
agent dev in /srv: one two, sees 0
health dev
setup dev in /srv
tests lib.sh test.sh
""",
    "own": """\
verifier root in /srv: own, its own, one two
agent ops in /srv: one two, sees 0
health ops
setup\x20
tests extra lib.sh test.sh
""",
    "apart": """\
verifier grader in /srv: apart, of all, one two
agent dev in /srv: one two, sees 0
health\x20
setup\x20
tests lib.sh test.sh
""",
}


def write_steps_of_their_own(task_dir: Path) -> Path:
    dockerfile = f"FROM {BASE}\nRUN useradd dev && useradd ops && useradd grader && chmod 777 /srv\nWORKDIR /srv\n"
    write_task(task_dir, root_toml=ROOT, toml=TOML, dockerfile=dockerfile, test_sh="#!/bin/bash\nexit 1\n")
    (task_dir / "instruction.md").unlink()
    setup = "#!/bin/bash\necho $(id -un) in $PWD > /srv/setup.inherits\n"
    # Of a file that the task and the step both have, the step's is taken.
    files = {
        "tests/lib.sh": 'reward() { echo "$1" > /logs/verifier/reward.txt; }\n',
        "tests/test.sh": JUDGE,
        "steps/inherits/workdir/setup.sh": setup,
        "steps/own/tests/test.sh": JUDGE.replace("reward 1", "reward 0.5"),
        "steps/own/tests/extra": "",
        "steps/apart/tests/lib.sh": "reward() { echo '{\"reward\": 0.25}' > /logs/verifier/reward.json; }\n",
        **{f"steps/{name}/instruction.md": f"<!-- canary {name} -->\n\nDo {name}.\n" for name in FACTS},
    }
    for file, text in files.items():
        path = task_dir / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task_dir


def left_of_steps(trial_dir: Path) -> dict[str, str]:
    """Return the files of verifiers and artifacts in a trial's folder: path → text."""
    found = {
        str(path.relative_to(trial_dir)): path.read_text()
        for kind in ("verifier", "artifacts")
        for path in (trial_dir / "steps").glob(f"*/{kind}/**/*")
        if path.is_file()
    }
    assert found
    return found


async def test_each_step_has_users_tests_times_and_artifacts_of_its_own(tmp_path: Path) -> None:
    task_dir = write_steps_of_their_own(tmp_path / "own-steps")
    theirs = await run_trial(task_dir, SCRIPTS, sandbox="local", trials_dir=tmp_path / "theirs")
    ends, first = await run_episode(task_dir, SCRIPTS, sandbox="local", trials_dir=tmp_path / "ours")
    assert graded_in(ends) == rewards_of(theirs)
    assert [reward for reward, _, _ in ends] == [0.0, 0.0, pytest.approx((1.0 + 0.5 + 0.25) / 3)]
    infos = [first, *(info for _, done, info in ends if not done)]
    assert [info.get("instruction") for info in infos] == instructions_of(theirs) == [f"Do {name}.\n" for name in FACTS]
    trial_dir = ends[-1][2].get("trial_dir")
    assert trial_dir is not None
    ours = left_of_steps(trial_dir)
    assert ours == left_of_steps(tmp_path / "theirs" / theirs.trial_name)
    assert {name: ours[f"steps/{name}/verifier/facts"] for name in FACTS} == FACTS
    kept = {name for name in ours if "/artifacts/" in name and not name.endswith("manifest.json")}
    assert kept == {
        *(f"steps/{name}/artifacts/srv/log" for name in FACTS),
        "steps/inherits/artifacts/srv/mine",
        "steps/own/artifacts/kept/notes/a.txt",
        "steps/apart/artifacts/srv/agent.apart",
    }


def write_two_steps(task_dir: Path, *, of_the_first: str, test_sh: str) -> Path:
    toml = f'[agent]\ntimeout_sec = 600\n[[steps]]\nname = "one"\n{of_the_first}[[steps]]\nname = "two"\n'
    write_task(task_dir, toml=toml, test_sh=test_sh)
    for name in ("one", "two"):
        (task_dir / "steps" / name).mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Do it.\n")
    return task_dir


async def test_a_step_whose_time_is_up_is_graded_and_the_next_one_begins(tmp_path: Path) -> None:
    judge = "#!/bin/bash\necho 0.5 > /logs/verifier/reward.txt\n"
    task_dir = write_two_steps(tmp_path / "timed", of_the_first="agent.timeout_sec = 0.2\n", test_sh=judge)
    scripts = ["sleep 0.3", "sleep 0.3"]
    theirs = await run_trial(task_dir, scripts, sandbox="local", trials_dir=tmp_path / "trials")
    failures = [item.exception_info and item.exception_info.exception_type for item in theirs.step_results or []]
    assert failures == ["AgentTimeoutError", None]
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        _, _, done, first = await env.step([("sleep 0.3\n", 60.0)])
        assert (done, env.remaining[1]) == (False, 1.0)
        _, _, done, second = await env.step([("sleep 0.3\n", 60.0)])
        assert (done, second.get("rewards")) == (False, None)
        _, _, done, last = await env.step(COMPLETE)
    assert [*first.get("step_rewards", ()), *last.get("step_rewards", ())[1:]] == rewards_of(theirs)
    assert (done, last.get("end_reason")) == (True, EndReason.COMPLETED)


async def test_a_steps_verifier_whose_time_is_up_gives_no_verdict(tmp_path: Path) -> None:
    judge = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\nsleep 5\n"
    task_dir = write_two_steps(tmp_path / "slow", of_the_first="verifier.timeout_sec = 0.3\n", test_sh=judge)
    theirs = await run_trial(task_dir, ["true"], sandbox="local", trials_dir=tmp_path / "trials")
    (step,) = theirs.step_results or []
    assert step.exception_info is not None
    assert step.exception_info.exception_type == "VerifierTimeoutError"
    assert step.verifier_result is None
    with pytest.raises(VerifierError, match=r"timed out after 0\.3 seconds"):
        await run_episode(task_dir, ["true"], sandbox="local", ambiguous_failures="infrastructure")


SPAWNER = """\
#!/bin/sh
[ -e /tests/test.sh ] && (setsid sh -c 'exec sleep 1009' >/dev/null 2>&1 &)
exec /bin/cat.real "$@"
"""
"""Stands in for a program that the verifier calls, and leaves a process behind."""

PLANT = (
    f"printf '%s' {shlex.quote(SPAWNER)} > /tmp/cat; chmod +x /tmp/cat; mv /bin/cat /bin/cat.real; mv /tmp/cat /bin/cat"
)
FORGER = """\
#!/bin/bash
if [ -e /tests/test.sh ]; then
    (setsid bash --norc -c 'while sleep 0.01; do
        [ ! -e /srv/second ] || { rm -f /logs/verifier/reward.txt; mkdir -p /logs/verifier/reward.txt; }
    done' >/dev/null 2>&1 &)
fi
exec /bin/cat.real "$@"
"""
"""The same, and its files take the next step's verdict away."""


@pytest.mark.parametrize("keeps", [False, True])
async def test_what_a_steps_verifier_started_ends_with_it(tmp_path: Path, keeps: bool) -> None:
    """A planted program that the verifier calls leaves nothing behind that the next step's verdict could depend on."""
    judge = (
        "#!/bin/bash\ncat /dev/null\n"
        "for _ in {1..6000}; do pgrep -f 'sleep 100[9]' >/dev/null && break; sleep 0.01; done\n"
        "pgrep -fc 'sleep 100[9]' > /srv/counted; echo 1 > /logs/verifier/reward.txt\n"
    )
    toml = f"[metadata]\nkeep_agent_processes = {str(keeps).lower()}\n"
    task_dir = write_two_steps(tmp_path / "planted", of_the_first="", test_sh=judge)
    (task_dir / "task.toml").write_text((task_dir / "task.toml").read_text() + toml)
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(f"setsid sleep 1008 & {PLANT}\n", 30.0)])
        _, reward, done, info = await env.step(COMPLETE)
        assert (reward, done, info["metrics"]["stopped_processes"]) == (0.0, False, 0 if keeps else 1)
        observation, *_ = await env.step([("/bin/cat.real /srv/counted; ps -ef | grep -o 'sleep 100[89]'\n", 30.0)])
        lines = observation.splitlines()
        assert "1" in lines, "the planted program was to leave a process"
        assert "sleep 1009" not in lines
        assert ("sleep 1008" in lines) is keeps
        _, reward, done, _ = await env.step(COMPLETE)
    assert (reward, done) == (1.0, True)


async def test_a_planted_program_costs_no_later_step_its_verdict(tmp_path: Path) -> None:
    judge = "#!/bin/bash\ncat /dev/null; echo 1 > /logs/verifier/reward.txt; sleep 0.3\n"
    task_dir = write_two_steps(tmp_path / "planted", of_the_first="", test_sh=judge)
    plant = PLANT.replace(shlex.quote(SPAWNER), shlex.quote(FORGER))
    restore = "rm /bin/cat; mv /bin/cat.real /bin/cat; touch /srv/second"
    ends, _ = await run_episode(task_dir, [plant, restore], sandbox="local")
    assert graded_in(ends) == [{"reward": 1.0}] * 2


@pytest.mark.parametrize("keeps", [True, False])
async def test_what_a_later_steps_setup_starts_runs_on_only_where_the_task_keeps_processes(
    tmp_path: Path, keeps: bool
) -> None:
    """Its programs may be the policy's: their children can't be told from the policy's own."""
    judge = (
        "#!/bin/bash\nif pgrep -f 'sleep 101[0]' >/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    task_dir = write_two_steps(tmp_path / "served", of_the_first="", test_sh=judge)
    with (task_dir / "task.toml").open("a") as file:
        file.write(f"[metadata]\nkeep_agent_processes = {str(keeps).lower()}\n")
    (task_dir / "steps/two/workdir").mkdir()
    (task_dir / "steps/two/workdir/setup.sh").write_text("setsid sleep 1010 >/dev/null 2>&1 &\n")
    ends, _ = await run_episode(task_dir, ["true", "setsid --fork sleep 1011"], sandbox="local")
    assert graded_in(ends) == [{"reward": 0.0}, {"reward": float(keeps)}]
    assert [info["metrics"]["stopped_processes"] for _, _, info in ends] == ([0, 0] if keeps else [0, 2])
