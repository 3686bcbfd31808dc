"""What a check makes of a task's rewards; sandboxes only where a test is marked so."""

from pathlib import Path

import pytest
from harbor.models.trial.config import EnvironmentConfig

from harbor_gym.checking import CheckPlan, TaskCheck, Verdict, check_tasks
from harbor_gym.sandboxes import environment_config
from tests.engines import require_engine
from tests.tasks import PASS_IF_DONE, write_task


@pytest.mark.parametrize(
    ("oracle", "nop", "forged", "error", "verdict"),
    [
        ((1.0, 1.0), (0.0, 0.0), 0.0, None, Verdict.OK),
        ((1,), (0,), None, None, Verdict.OK),
        ((0.0, 0.0), (0.0, 0.0), 0.0, None, Verdict.UNSOLVED),
        ((0.5,), (0.0,), 0.0, None, Verdict.UNSOLVED),
        ((1.0,), (1.0,), 1.0, None, Verdict.TRIVIAL),
        ((1.0, 0.9), (0.0, 0.0), 0.0, None, Verdict.UNSTEADY),
        ((1.0, 1.0), (0.0, 0.1), 0.0, None, Verdict.UNSTEADY),
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


BROKEN = {
    "no instruction": ("instruction.md", None, "instruction.md"),
    "no tests": ("tests/test.sh", None, "test"),
    "no solution": ("solution/solve.sh", None, "has no solution/ that the oracle could run"),
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


# --- in real sandboxes -----------------------------------------------------------------------------------------------

ROOTS_OWN = "PATH=/usr/bin:/bin\n"
"""What keeps programs that the policy planted, as root, out of a verifier written in bash."""


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    require_engine("local")
    return CheckPlan(environment_config("local"), tmp_path / "trials", repeat=1)


def own_path(test_sh: str) -> str:
    return test_sh.replace("#!/bin/bash\n", f"#!/bin/bash\n{ROOTS_OWN}")


@pytest.mark.local
async def test_field_1_and_3_a_forged_reward_is_found_and_the_trick_named(tmp_path: Path, plan: CheckPlan) -> None:
    """The tricks are real: each weak verifier falls for one, and what is not weak falls for none."""
    starts_python = (
        f"#!/bin/bash\n{ROOTS_OWN}python3 -c 'import random'\necho 0 > /logs/verifier/reward.txt\nsleep 0.3\n"
    )
    tasks = [
        write_task(tmp_path / "finds_cat_on_path"),
        write_task(tmp_path / "starts_python", test_sh=starts_python),
        write_task(tmp_path / "sound", test_sh=own_path(PASS_IF_DONE)),
    ]
    on_path, python, sound = await check_tasks(tasks, plan, concurrency=3)
    assert (on_path.verdict, on_path.tricks) == (Verdict.FORGEABLE, ("programs",))
    assert python.forged == 1.0
    assert python.tricks == ("python_startup",)
    assert (sound.verdict, sound.forged) == (Verdict.OK, 0.0)


@pytest.mark.local
async def test_a_verdict_that_changes_by_itself_is_found(tmp_path: Path, plan: CheckPlan) -> None:
    lottery = "#!/bin/bash\necho 0.$(od -An -N4 -tu4 /dev/urandom | tr -d ' ') > /logs/verifier/reward.txt\n"
    twice = CheckPlan(plan.environment, plan.trials_dir, repeat=2, forge=False)
    (check,) = await check_tasks([write_task(tmp_path / "lottery", test_sh=lottery)], twice)
    assert check.verdict is Verdict.UNSTEADY
    assert len(set(check.oracle)) == len(set(check.nop)) == 2


@pytest.mark.local
async def test_what_the_sandbox_does_not_take_is_refused_in_one_line_and_the_rest_goes_on(
    tmp_path: Path, plan: CheckPlan
) -> None:
    composed = write_task(tmp_path / "composed")
    (composed / "environment" / "docker-compose.yaml").write_text("services:\n  db:\n    image: debian\n")
    hosts = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]\n'
    listed = write_task(tmp_path / "listed", toml=hosts)
    fine = write_task(tmp_path / "fine", test_sh=own_path(PASS_IF_DONE))
    seen: list[str] = []
    checks = await check_tasks([composed, listed, fine], plan, concurrency=2, on_checked=lambda c: seen.append(c.task))
    assert [check.verdict for check in checks] == [Verdict.REFUSED, Verdict.REFUSED, Verdict.OK]
    assert sorted(seen) == ["composed", "fine", "listed"]
    for refused in checks[:2]:
        assert refused.reason is not None
        assert "\n" not in refused.reason
        assert refused.oracle == refused.nop == ()
    assert "--env docker" in (checks[0].reason or "")
    assert checks[2].phases is not None
    assert 0 < checks[2].phases.start < checks[2].seconds
