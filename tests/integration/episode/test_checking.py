"""A check's verdicts on a task's rewards; sandboxes only where a test is marked so."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from harbor.models.trial.config import EnvironmentConfig

from harbor_gym.checking import CheckPlan, PristineCheck, TaskCheck, Verdict, check_tasks
from harbor_gym.checking.report import as_object, remarks, table_head, table_row
from harbor_gym.sandboxes import environment_config
from tests.helpers.sandboxes.viewing import VIEWING
from tests.helpers.tasks import BASE, DONE, PASS_IF_DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(
    ("oracle", "nop", "forged", "error", "verdict"),
    [
        ((1.0, 1.0), (0.0, 0.0), 0.0, None, Verdict.OK),
        ((1,), (0,), None, None, Verdict.OK),
        ((0.0, 0.0), (0.0, 0.0), 0.0, None, Verdict.UNSOLVED),
        ((0.5,), (0.0,), 0.0, None, Verdict.UNSOLVED),
        ((1.0,), (1.0,), 1.0, None, Verdict.TRIVIAL),
        ((1.0, 0.9), (0.0, 0.0), 0.0, None, Verdict.FLAKY),
        ((1.0, 1.0), (0.0, 0.1), 0.0, None, Verdict.FLAKY),
        ((1.0,), (0.0,), 1.0, None, Verdict.FORGEABLE),
        ((1.0,), (0.0,), 0.1, None, Verdict.FORGEABLE),
        ((1.0,), (), None, "nop: lost", Verdict.ERROR),
        ((), (), None, "oracle: lost", Verdict.ERROR),
        ((1.0,), (), None, None, Verdict.TRIVIAL),
        ((), (0.0,), None, None, Verdict.UNSOLVED),
    ],
)
def test_one_word_for_what_was_found(
    oracle: tuple[float, ...], nop: tuple[float, ...], forged: float | None, error: str | None, verdict: Verdict
) -> None:
    check = TaskCheck(task="t", path=Path("t"), oracle=oracle, nop=nop, forged=forged, error=error)
    assert check.verdict is verdict
    assert check.ok is (verdict is Verdict.OK)
    assert (check.reason is None) is check.ok


@pytest.mark.parametrize(
    ("nop", "forged", "verdict"),
    [
        ((0.0, 0.0), 0.0, Verdict.UNPROVEN),
        ((0.0,), None, Verdict.UNPROVEN),
        ((1.0,), 1.0, Verdict.TRIVIAL),
        ((0.0, 0.5), 0.0, Verdict.FLAKY),
        ((0.0,), 1.0, Verdict.FORGEABLE),
    ],
)
def test_without_a_solution_the_best_word_is_unproven(
    nop: tuple[float, ...], forged: float | None, verdict: Verdict
) -> None:
    check = TaskCheck(task="t", path=Path("t"), has_solution=False, nop=nop, forged=forged)
    assert (check.verdict, check.ok) == (verdict, False)
    assert check.reason


@pytest.mark.parametrize(
    ("plain", "reason"),
    [(1.0, "empties /logs/verifier"), (1.0, "keep_agent_processes = false"), (0.0, "scores 0, not 1")],
)
def test_where_plain_trial_and_episode_differ_the_reason_states_why(plain: float, reason: str) -> None:
    check = TaskCheck(task="t", path=Path("t"), oracle=(0.0,), nop=(0.0,), plain=plain)
    assert check.verdict is Verdict.UNSOLVED
    assert reason in (check.reason or "")


def test_a_solution_that_only_an_episode_rewards_is_flaky() -> None:
    check = TaskCheck(task="t", path=Path("t"), oracle=(1.0,), nop=(0.0,), plain=0.0)
    assert check.verdict is Verdict.FLAKY
    assert "as a plain trial 0" in (check.reason or "")


def test_a_row_has_the_verdict_and_the_remarks_quote_the_verifier() -> None:
    check = TaskCheck(
        task="t",
        path=Path("t"),
        oracle=(0.0,),
        nop=(0.0,),
        output="one\ntwo",
    )
    assert [table_head(6), table_row(check, 6)] == [
        "task    oracle   nop      forged  start  agent  verify   stop    all  harbor     pristine   verdict",
        "t       0        0        -           -      -       -      -    0.0  unsolved   -          unsolved",
    ]
    assert remarks(check) == ["t: the task's own solution scores 0, not 1", "    | one", "    | two"]
    assert remarks(replace(check, oracle=(1.0,))) == []


# --- in both views ---------------------------------------------------------------------------------------------------


def viewing_plan(tmp_path: Path, **settings: Any) -> CheckPlan:
    options = {"solved_when": {"/srv/answer": "done"}}
    return CheckPlan(environment_config(VIEWING, options=options), tmp_path / "trials", repeat=1, **settings)


DECLARED = '[metadata]\nverify_paths = ["{}"]\n'


async def test_paths_of_a_view_are_proposed_and_both_views_graded(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (check,) = await check_tasks([task], viewing_plan(tmp_path))
    assert (check.verdict, check.forged, check.pristine) == (
        Verdict.FORGEABLE,
        1.0,
        PristineCheck(paths=("/srv",), is_asked=False, oracle=1.0, nop=0.0, forged=0.0),
    )
    assert remarks(check)[-1].endswith('verify_paths = ["/srv"] under [metadata] in task.toml')
    assert table_row(check, 4).split()[-3:] == ["forgeable", "ok", "forgeable"]
    found = as_object(check)
    assert found["pristine"] is not None
    assert found["harbors_verdict"] == "forgeable"
    json.dumps(found, default=str)


@pytest.mark.parametrize(
    ("carried", "verdict", "reason"),
    [
        ("/srv", Verdict.OK, None),
        ("/app", Verdict.UNSOLVED, "in the pristine view of /app the task's own solution scores 0"),
        ("/usr/bin", Verdict.FORGEABLE, "reward hacking scores 1"),
    ],
)
async def test_the_view_that_a_task_declares_decides(
    tmp_path: Path, carried: str, verdict: Verdict, reason: str | None
) -> None:
    task = write_task(tmp_path / "task", toml=DECLARED.format(carried))
    solved_by = "/usr/bin/answer" if carried == "/usr/bin" else "/srv/answer"
    (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\necho done > {solved_by}\n")
    options = {"solved_when": {solved_by: "done"}}
    plan = replace(viewing_plan(tmp_path), environment=environment_config(VIEWING, options=options))
    (check,) = await check_tasks([task], plan)
    assert (check.verdict, check.harbors_verdict) == (verdict, Verdict.FORGEABLE)
    assert (check.reason is None) is (reason is None)
    assert (reason or "") in (check.reason or "")


async def test_without_a_solution_a_declared_view_makes_a_task_unproven(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml=DECLARED.format("/srv"))
    (task / "solution" / "solve.sh").unlink()
    (task / "solution").rmdir()
    (check,) = await check_tasks([task], viewing_plan(tmp_path))
    assert (check.verdict, check.harbors_verdict) == (Verdict.UNPROVEN, Verdict.FORGEABLE)
    assert "has no solution/" in (check.reason or "")


async def test_a_plan_may_give_the_paths_or_leave_the_view_out(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml=DECLARED.format("/app"))
    (off,) = await check_tasks([task], viewing_plan(tmp_path, verify_paths="off", try_exploits=False))
    assert (off.verdict, off.pristine) == (Verdict.OK, None)
    given = viewing_plan(tmp_path, verify_paths=(PurePosixPath("/srv"),))
    (check,) = await check_tasks([task], given)
    assert (check.verdict, check.pristine and check.pristine.paths) == (Verdict.OK, ("/srv",))


async def test_a_view_demanded_of_a_sandbox_without_one_is_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "solution" / "solve.sh").unlink()
    (task / "solution").rmdir()
    options = {"solved_when": {"/srv/answer": "done"}}
    fake = environment_config("harbor_gym.testing:FakeEnvironment", options=options)
    plan = viewing_plan(tmp_path, verify_paths=(PurePosixPath("/srv"),), try_exploits=False)
    (check,) = await check_tasks([task], replace(plan, environment=fake))
    assert check.verdict is Verdict.REFUSED
    assert "has no pristine view" in (check.reason or "")


BROKEN = {
    "no instruction": ("instruction.md", None, "instruction.md"),
    "no tests": ("tests/test.sh", None, "test"),
    "bad toml": ("task.toml", "not toml [", "task.toml|toml|Expected"),
    "bad value": ("task.toml", '[verifier]\ntimeout_sec = "soon"\n', "timeout_sec"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_task_is_an_error_not_a_reward(tmp_path: Path, case: str) -> None:
    file, content, expected = BROKEN[case]
    task = write_task(tmp_path / "broken")
    if content is None:
        (task / file).unlink()
        if file != "instruction.md":
            (task / file).parent.rmdir()
    else:
        (task / file).write_text(content)
    plan = CheckPlan(EnvironmentConfig(import_path="no.sandbox:IsNeeded"), tmp_path / "trials")
    (check,) = await check_tasks([task], plan)
    assert (check.oracle, check.nop, check.verdict) == ((), (), Verdict.ERROR)
    assert check.error is not None
    assert any(word in check.error for word in expected.split("|")), check.error


def sure(check: TaskCheck) -> tuple[str, ...]:
    """Return the tricks that pay each time. A spawned process may write after the verdict was read."""
    return tuple(trick for trick in check.tricks if trick != "spawning_shell")


# --- in real sandboxes -----------------------------------------------------------------------------------------------

ROOTS_OWN = "PATH=/usr/bin:/bin\n"
"""A line that keeps programs planted by the policy, as root, out of a verifier written in bash."""


ORDINARY = {
    "dockerfile": f"FROM {BASE}\nRUN useradd --create-home dev\nWORKDIR /srv\nRUN chown dev /srv\n",
    "toml": '[agent]\nuser = "dev"\n',
}
"""Settings that keep the policy from replacing a program in its place."""


def own_path(test_sh: str) -> str:
    return test_sh.replace("#!/bin/bash\n", f"#!/bin/bash\n{ROOTS_OWN}")


@pytest.mark.local
async def test_field_1_and_3_a_forged_reward_is_found_and_the_trick_named(tmp_path: Path, plan: CheckPlan) -> None:
    """The tricks are real: each weak verifier falls for one, and a sound one for none, with a solution or without."""
    starts_python = own_path(PASS_IF_DONE.replace("if [", "python3 -c 'import random'\nif [")) + "sleep 0.3\n"
    tasks = [
        write_task(tmp_path / "finds_cat_on_path"),
        write_task(tmp_path / "starts_python", test_sh=starts_python),
        write_task(tmp_path / "starts_bash", test_sh=own_path(PASS_IF_DONE) + "sleep 0.3\n"),
        write_task(tmp_path / "sound", test_sh=own_path(PASS_IF_DONE) + "sleep 0.3\n", **ORDINARY),
        write_task(tmp_path / "unproven", test_sh=own_path(PASS_IF_DONE), **ORDINARY),
    ]
    for task in (tasks[0], tasks[-1]):
        shutil.rmtree(task / "solution")
    on_path, python, shell, sound, unproven = await check_tasks(tasks, plan, concurrency=2)
    assert (on_path.verdict, on_path.oracle, sure(on_path)) == (Verdict.FORGEABLE, (), ("programs", "shell"))
    assert (python.verdict, sure(python)) == (Verdict.FORGEABLE, ("python_startup", "shell"))
    assert (shell.verdict, sure(shell)) == (Verdict.FORGEABLE, ("shell",))
    assert (sound.verdict, sound.forged) == (Verdict.OK, 0.0)
    assert (unproven.verdict, unproven.oracle, unproven.nop, unproven.forged) == (Verdict.UNPROVEN, (), (0.0,), 0.0)


@pytest.mark.local
async def test_a_service_whose_program_the_policy_can_replace_is_named(tmp_path: Path, plan: CheckPlan) -> None:
    """The clean-up spares the service and its children; only a view keeps that from forging."""
    serves = f"FROM {BASE}\nRUN echo 'while :; do touch /run/serving; sleep 0.05; done' > /usr/local/bin/serve\n"
    healthy = (
        '[environment.healthcheck]\ncommand = "[ -e /run/serving ] || { setsid bash /usr/local/bin/serve '
        '>/dev/null 2>&1 & sleep 0.1; false; }"\ninterval_sec = 0.1\nstart_interval_sec = 0.1\nstart_period_sec = 5\n'
    )
    unshadowed = own_path(PASS_IF_DONE) + "for _ in {1..30}; do read -r -t 0.01 _ <> <(:); done\n"
    task = write_task(tmp_path / "serves", dockerfile=serves, toml=healthy, test_sh=unshadowed)
    (check,) = await check_tasks([task], plan)
    assert check.verdict is Verdict.FORGEABLE
    assert "services" in check.tricks
    assert check.pristine is not None, check.error
    assert (check.pristine.verdict, check.pristine.forged) == (Verdict.OK, 0.0)


SERVES = "(while :; do touch /srv/beat; sleep 0.05; done) </dev/null >/dev/null 2>&1 &\n"
"""A solution that is a service: a file comes back for as long as it runs."""

PASS_IF_SERVED = """\
#!/bin/bash
PATH=/usr/bin:/bin
rm -f /srv/beat
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e /srv/beat ] || sleep 0.1; done
[ -e /srv/beat ] && reward=1 || { echo "nobody serves"; reward=0; }
echo $reward > /logs/verifier/reward.txt
"""


@pytest.mark.local
async def test_a_solution_that_only_a_plain_trial_rewards_is_named_with_what_the_task_lacks(
    tmp_path: Path, plan: CheckPlan
) -> None:
    """The policy that types the solution's very commands gets the check's reward, not a plain trial's."""
    tables = {
        "stopping": "keep_agent_processes = false\n",
        "viewed": 'verify_paths = ["/srv"]\n',
        "keeping": 'verify_paths = ["/srv"]\nkeep_agent_processes = true\n',
        "plain": "",
    }
    tasks = [
        write_task(tmp_path / name, test_sh=PASS_IF_SERVED, toml=f"[metadata]\n{table}")
        for name, table in tables.items()
    ]
    for task in tasks:
        (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\n{SERVES}")
    honest = replace(plan, try_exploits=False)
    stopping, viewed, *oks = await check_tasks(tasks, honest, concurrency=2)
    assert (stopping.verdict, stopping.oracle, stopping.plain) == (Verdict.UNSOLVED, (0.0,), 1.0)
    assert "the plain trial scores 1, the episode 0" in (stopping.reason or "")
    assert "keep_agent_processes = false" in (stopping.reason or "")
    assert (viewed.verdict, viewed.oracle, viewed.plain) == (Verdict.UNSOLVED, (1.0,), 1.0)
    assert "2 processes that it left and that were stopped before grading" in (viewed.reason or "")
    for ok in oks:
        assert (ok.verdict, ok.oracle, ok.plain) == (Verdict.OK, (1.0,), 1.0)


@pytest.mark.local
async def test_what_the_verifier_printed_in_the_plain_trial_alone_is_shown(tmp_path: Path, plan: CheckPlan) -> None:
    refusing = f"{PASS_IF_DONE}if [ -e /logs/verifier/left ]; then echo left; echo 0 > /logs/verifier/reward.txt; fi\n"
    task = write_task(tmp_path / "task", test_sh=refusing)
    (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\n{DONE}touch /logs/verifier/left\n")
    (check,) = await check_tasks([task], replace(plan, try_exploits=False))
    assert (check.verdict, check.oracle, check.plain) == (Verdict.FLAKY, (1.0,), 0.0), check.error
    assert check.shown_output == "left"


@pytest.mark.local
async def test_a_failing_solution_quotes_the_verifier_and_is_not_forged(tmp_path: Path, plan: CheckPlan) -> None:
    """Most failures are a program that the verifier lacks; its output is gone with the trial's folder."""
    complaint = "for i in $(seq 20); do echo line $i; done; echo '\x1b[31muvx: command not found'"
    fails = write_task(tmp_path / "fails", test_sh=f"#!/bin/bash\n{complaint}\necho 0 >/logs/verifier/reward.txt\n")
    crashes = write_task(tmp_path / "crashes", test_sh=f"#!/bin/bash\n{complaint}\n")
    unsolved, error = await check_tasks([fails, crashes], plan, concurrency=2)
    assert (unsolved.verdict, unsolved.forged, unsolved.tricks) == (Verdict.UNSOLVED, None, ())
    assert error.verdict is Verdict.ERROR
    for check in (unsolved, error):
        lines = check.output.splitlines()
        assert len(lines) == 10
        assert lines[-1].endswith("uvx: command not found")
        assert lines[-2] == "line 20"
        assert "\x1b" not in check.output


@pytest.mark.local
async def test_a_reward_of_several_keys_is_checked_and_forged_by_the_key_that_counts(
    tmp_path: Path, plan: CheckPlan
) -> None:
    graded = (
        "#!/bin/bash\n[ -e /srv/answer ] && n=1 || n=0\n{}"
        "echo '{{\"speed\": '$n', \"size\": 0}}' >/logs/verifier/reward.json\n"
    )
    tasks = [
        write_task(tmp_path / "sound", test_sh=own_path(graded.format("")), **ORDINARY),
        write_task(tmp_path / "weak", test_sh=graded.format("grep -c . /dev/null\n") + "sleep 0.3\n"),
    ]
    sound, weak = await check_tasks(tasks, replace(plan, reward_key="speed"), concurrency=2)
    assert (sound.verdict, sound.oracle, sound.forged) == (Verdict.OK, (1.0,), 0.0)
    assert (weak.verdict, weak.forged) == (Verdict.FORGEABLE, 1.0)
    (lowest,) = await check_tasks(tasks[:1], replace(plan, reward_function="min", try_exploits=False))
    assert (lowest.verdict, lowest.oracle) == (Verdict.UNSOLVED, (0.0,))


@pytest.mark.local
async def test_a_solution_has_the_time_that_the_task_gives_and_is_graded_then(tmp_path: Path, plan: CheckPlan) -> None:
    task = write_task(tmp_path / "slow", toml="[agent]\ntimeout_sec = 4.0\n")
    with (task / "solution" / "solve.sh").open("a") as solution:
        solution.write("sleep 3600\n")
    (check,) = await check_tasks([task], replace(plan, try_exploits=False))
    assert (check.verdict, check.oracle, check.plain) == (Verdict.OK, (1.0,), 1.0)


@pytest.mark.local
async def test_a_verdict_that_changes_by_itself_is_found(tmp_path: Path, plan: CheckPlan) -> None:
    lottery = "#!/bin/bash\necho 0.$(od -An -N4 -tu4 /dev/urandom | tr -d ' ') | tee /logs/verifier/reward.txt\n"
    twice = CheckPlan(plan.environment, plan.trials_dir, repeat=2, try_exploits=False)
    (check,) = await check_tasks([write_task(tmp_path / "lottery", test_sh=lottery)], twice)
    assert check.verdict is Verdict.FLAKY
    assert len(set(check.oracle)) == len(set(check.nop)) == 2
    assert re.search(r"\boracle, run [12]\b", check.reason or "")
    assert float(check.shown_output or "") in check.oracle


@pytest.mark.local
@pytest.mark.compose
async def test_what_the_sandbox_does_not_take_is_refused_in_one_line_and_the_rest_goes_on(
    tmp_path: Path, plan: CheckPlan
) -> None:
    composed = write_task(tmp_path / "composed")
    (composed / "environment" / "docker-compose.yaml").write_text("services: {main: {privileged: true}}\n")
    gpus = write_task(tmp_path / "gpus", toml="[environment]\ngpus = 1\n")
    fine = write_task(tmp_path / "fine", test_sh=own_path(PASS_IF_DONE), **ORDINARY)
    seen: list[str] = []
    checks = await check_tasks([composed, gpus, fine], plan, concurrency=2, on_checked=lambda c: seen.append(c.task))
    assert [check.verdict for check in checks] == [Verdict.REFUSED, Verdict.REFUSED, Verdict.OK]
    assert sorted(seen) == ["composed", "fine", "gpus"]
    for refused in checks[:2]:
        assert refused.reason is not None
        assert "\n" not in refused.reason
        assert refused.oracle == refused.nop == ()
    assert "--env docker" in (checks[0].reason or "")
    assert checks[2].phases is not None
    assert 0 < checks[2].phases.start < checks[2].seconds


def test_services_of_an_entrypoint_are_named() -> None:
    check = TaskCheck(task="t", path=Path("t"), oracle=(1.0,), nop=(0.0,), services="waited 0.6 s")
    assert remarks(check) == ["t: waited 0.6 s"]
    assert as_object(check)["services"] == "waited 0.6 s"
