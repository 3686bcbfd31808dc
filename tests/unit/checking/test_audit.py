"""An audit of several tasks: receipts, what is not judged again, the set, and one task that costs its verdict alone."""
# ruff: noqa: E501  # the scripts of tasks, each on the line of its name

import asyncio
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.checking.audit.kinds import KINDS
from harbor_gym.checking.audit.report import as_csv, summary
from harbor_gym.checking.audit.run import Audit, AuditPlan, audit_tasks
from harbor_gym.checking.audit.sets import Likeness, compare
from harbor_gym.checking.audit.verdicts import find_in_check
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import TaskCheck, Verdict
from harbor_gym.errors import UsageError
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import SourcedTask, resolve_tasks
from harbor_gym.tasks.receipts import Receipt, audited_tasks, read_receipts
from harbor_gym.testing import FakeEnvironment
from harbor_gym.types import Severity
from tests.helpers.paths import ROOT
from tests.helpers.seeded_tasks import SEEDS, WORK, Files, write_seed


class Odd(FakeEnvironment):
    """A sandbox whose start hangs for the task ``hangs``, and raises what is none of ours for ``dies``."""

    async def start(self, force_build: bool) -> None:
        name = self.environment_dir.parent.name
        if name == "hangs":
            await asyncio.Event().wait()
        if name == "dies":
            raise MemoryError("the kernel is out of it")
        await super().start(force_build)


async def audit(folder: Path, **settings: Any) -> tuple[Audit, list[str]]:
    """Audit the tasks of a folder; return the result and the names of those that were judged now."""
    judged: list[str] = []
    tasks = await resolve_tasks(folder / "tasks")
    plan = AuditPlan(folder / "audit", settings.pop("check", None), **settings)
    return await audit_tasks(tasks, plan, on_judged=lambda receipt: judged.append(receipt.task)), judged


def kinds(receipts: Sequence[Receipt]) -> dict[str, set[str]]:
    return {receipt.task: {found.kind for found in receipt.findings} for receipt in receipts}


async def test_a_task_whose_files_have_not_changed_is_not_judged_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_seed(tmp_path / "tasks" / name, {"instruction.md": f"Do what {name} asks for, {name} times.\n"})
    first, judged = await audit(tmp_path)
    assert sorted(judged) == ["one", "two"]
    (tmp_path / "tasks/two/solution/solve.sh").write_text("#!/bin/bash\necho 3\n")
    second, judged = await audit(tmp_path)
    assert (judged, second.kept) == (["two"], 1)
    assert second.receipts[0] == first.receipts[0]
    assert (await audit(tmp_path, fresh=True))[1]


async def test_an_interrupted_audit_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(6):
        write_seed(tmp_path / f"tasks/t{number}", {})
    tasks = await resolve_tasks(tmp_path / "tasks")

    def stop(_: Receipt) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await audit_tasks(tasks, AuditPlan(tmp_path / "audit", None, jobs=1), on_judged=stop)
    assert len(read_receipts(tmp_path / "audit")) == 1
    result, judged = await audit(tmp_path)
    assert (len(judged), len(result.receipts)) == (5, 6)


@pytest.mark.parametrize("text", ["{", '{"format": 2}'])
async def test_a_receipt_that_can_not_be_read_is_named(tmp_path: Path, text: str) -> None:
    write_seed(tmp_path / "tasks/one", {})
    (result, _) = await audit(tmp_path)
    path = result.receipts[0].file_in(tmp_path / "audit")
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        await audit(tmp_path)


async def test_the_tasks_of_a_set_are_compared(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    named = {"task.toml": '[task]\nname = "test/same"\n'}
    tests = {"tests/test.sh": f"{WORK['tests/test.sh']}\n: {words}\n"}
    for name, files in {
        "a": named | {"instruction.md": f"Sum it. {words}\n"} | tests,
        "a-again": {"instruction.md": f"SUM it:   {words}\n"} | tests,
        "almost": {"instruction.md": f"Sum it now. {words}\n"} | tests,
        "same-name": named
        | {"instruction.md": "Another thing.\n", "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n"},
        "same-tests": {"instruction.md": "Something else is asked for here, of another kind.\n"} | tests,
        "same-instruction": {
            "instruction.md": f"Sum it. {words}\n",
            "tests/test.sh": "echo $x > /logs/verifier/reward.txt\n",
        },
    }.items():
        write_seed(tmp_path / "tasks" / name, files)
    result, _ = await audit(tmp_path)
    assert kinds(result.receipts) == {
        "a": {"set/name-collision", "set/duplicate", "set/near-duplicate"},
        "a-again": {"set/duplicate"},
        "almost": {"set/near-duplicate"},
        "same-name": {"set/name-collision"},
        "same-tests": set(),
        "same-instruction": set(),
    }
    for name in ("a-again", "almost", "same-name"):
        for path in sorted((tmp_path / "tasks" / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (tmp_path / "tasks" / name).rmdir()
    again, judged = await audit(tmp_path)
    assert (judged, kinds(again.receipts)["a"]) == ([], set())


def test_a_task_of_many_duplicates_names_three_others() -> None:
    likes = {name: Likeness(name, "same", "same", frozenset({1}), frozenset({1})) for name in "abcdef"}
    found = compare(likes)
    assert found["b"][0].message == "a, c, d and 2 more has the same instruction and the same tests"
    assert found["f"][0].message == "a, b, c and 2 more has the same instruction and the same tests"


@pytest.mark.parametrize(("name", "kind"), [("hangs", "verdict/too-long"), ("dies", "verdict/sandbox-failed")])
async def test_a_task_costs_its_own_verdict_alone(tmp_path: Path, name: str, kind: str) -> None:
    for task in ("fine", name):
        write_seed(tmp_path / "tasks" / task, {"instruction.md": f"{task} is all that this says.\n"})
    plan = CheckPlan(environment_config(f"{__name__}:Odd"), tmp_path / "trials", repeat=1, try_exploits=False)
    limit = 1.0 if name == "hangs" else None
    result, _ = await audit(tmp_path, check=plan, sandbox="odd", task_timeout_sec=limit)
    assert kind in kinds(result.receipts)[name]
    assert "fine" in kinds(result.receipts)
    again = (await audit(tmp_path, check=plan, sandbox="odd", task_timeout_sec=limit))[1]
    assert (name in again) == (name == "dies")


async def test_only_tasks_with_a_clean_receipt_are_played(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, files in {
        "right": {},
        "warned": SEEDS["hygiene/unpinned"]["pip"],
        "wrong": SEEDS["leak/tests"]["git"],
    }.items():
        write_seed(tmp_path / "tasks" / name, files | {"instruction.md": f"{name} is all that this one says.\n"})
    await audit(tmp_path)
    write_seed(tmp_path / "tasks/new", {"instruction.md": "It was not there when the others were audited.\n"})
    tasks = await resolve_tasks(tmp_path / "tasks")
    assert [task.name for task in audited_tasks(tasks, tmp_path / "audit")] == ["right", "warned"]
    assert "of 4 tasks 2 are left out: 1 have no receipt" in caplog.text
    strict = audited_tasks(tasks, tmp_path / "audit", refused=Severity.WARNING)
    assert [task.name for task in strict] == ["right"]
    with pytest.raises(UsageError, match="of 1 tasks 1 are left out"):
        audited_tasks([task for task in tasks if task.name == "wrong"], tmp_path / "audit")
    with pytest.raises(UsageError, match="holds no receipts"):
        audited_tasks(tasks, tmp_path)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("===== 3 skipped in 0.02s =====", "vacuous/tests-skipped"),
        ("1 xfailed in 0.10s", "vacuous/tests-skipped"),
        ("Ran 2 tests in 0.001s\n\nOK (skipped=2)", "vacuous/tests-skipped"),
        ("collected 0 items\n\n===== no tests ran in 0.01s =====", "vacuous/no-tests"),
        ("Ran 0 tests in 0.000s\n\nOK", "vacuous/no-tests"),
        ("===== 2 passed, 1 skipped in 0.02s =====", None),
        ("Ran 2 tests in 0.001s\n\nOK (skipped=1)", None),
        ("3 files copied in 0.1 s", None),
        ("", None),
    ],
)
def test_a_paid_run_without_tests_is_found(tmp_path: Path, output: str, kind: str | None) -> None:
    check = TaskCheck("task", tmp_path, oracle=(1.0,), nop=(0.0,), solved_output=output)
    assert [found.kind for found in find_in_check(check)] == ([] if kind is None else [kind])


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ({"oracle": (0.0,), "nop": (0.0,)}, Verdict.UNSOLVED),
        ({"oracle": (1.0,), "nop": (1.0,)}, Verdict.TRIVIAL),
        ({"oracle": (1.0, 0.0), "nop": (0.0,)}, Verdict.FLAKY),
        ({"oracle": (1.0,), "nop": (0.0,), "forged": 1.0}, Verdict.FORGEABLE),
        ({"has_solution": False, "nop": (0.0,)}, Verdict.UNPROVEN),
        ({"error": "nop: no verdict"}, Verdict.ERROR),
        ({"error": "nop: gone", "is_lost": True}, Verdict.ERROR),
        ({"error": "task: windows", "refused": True}, Verdict.REFUSED),
    ],
)
def test_each_verdict_of_a_check_but_ok_is_a_finding(tmp_path: Path, check: dict[str, Any], verdict: Verdict) -> None:
    found = TaskCheck("task", tmp_path, **check)
    assert found.verdict is verdict
    (one,) = find_in_check(found)
    assert one.message == found.reason


async def test_a_spreadsheet_has_one_row_a_finding_and_no_formula(tmp_path: Path) -> None:
    write_seed(tmp_path / "tasks/one", SEEDS["leak/solution"]["base64"])
    write_seed(tmp_path / "tasks/two", {})
    (result, _) = await audit(tmp_path)
    rows = list(csv.DictReader(io.StringIO(as_csv(result.receipts))))
    assert next(row["kind"] for row in rows if row["task"] == "one") == "leak/solution"
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    assert summary(result.receipts)["kinds"]["leak/solution"] == {str(tmp_path / "tasks"): 1}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harbor_gym", "audit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("files", "status"), [({}, 0), (SEEDS["hygiene/unpinned"]["pip"], 3), (SEEDS["task/malformed"]["syntax"], 1)]
)
def test_the_exit_status_says_the_worst(tmp_path: Path, files: Files, status: int) -> None:
    task = write_seed(tmp_path / "task", files)
    done = run(task, "--no-play", "--output", tmp_path / "audit", "--json")
    assert done.returncode == status
    assert json.loads(done.stdout) == json.loads((tmp_path / "audit/audit.json").read_text())


def test_only_episodes_of_a_run_are_graded_anew(tmp_path: Path) -> None:
    done = run(write_seed(tmp_path / "task", {}), "--no-play", "--regrade", 3, "--output", tmp_path / "audit")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--regrade grades the episodes of a run anew: name its folder (--run)" in done.stderr


def test_the_schema_of_a_receipt_is_published() -> None:
    assert json.loads(run("--schema").stdout) == Receipt.model_json_schema()
    assert Receipt.model_json_schema()["properties"]["format"]["const"] == 3


@pytest.mark.parametrize("number", [1, 2])
async def test_a_receipt_of_an_earlier_format_is_read(tmp_path: Path, number: int) -> None:
    write_seed(tmp_path / "tasks/one", SEEDS["leak/tests"]["git"])
    (first, _) = await audit(tmp_path)
    path = first.receipts[0].file_in(tmp_path / "audit")
    document = json.loads(path.read_text())
    document["format"] = number
    del document["view"], document["episodes"]
    for found in document["findings"] if number == 1 else ():
        for evidence in found["evidence"]:
            del evidence["episode"], evidence["turn"]
    path.write_text(json.dumps(document))
    (second, judged) = await audit(tmp_path)
    assert (judged, second.receipts) == ([], first.receipts)


def test_every_kind_is_on_the_page() -> None:
    page = (ROOT / "docs/guide/audit.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+/[a-z-]+)` \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(kind, known.severity.value) for kind, known in KINDS.items()]


async def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    task = write_seed(tmp_path / "tasks/one", {})
    os.mkfifo(task / "environment/pipe")
    (task / "environment/out").symlink_to("/dev/zero")
    (result, _) = await audit(tmp_path)
    assert kinds(result.receipts) == {"one": {"task/malformed"}}


def sourced(task: Path) -> SourcedTask:
    return SourcedTask(task.name, task, "tests", "sha256:0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, None),
        ({"tests/test.sh": "#!/bin/bash\n[ -f /srv/totals.txt ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"}, "verdict/untrying-paid"),
        (
            {"tests/test.sh": "#!/bin/bash\nperl /tests/check.pl > /tmp/log\nif grep -q FAIL /tmp/log; then echo 0; else echo 1; fi > /logs/verifier/reward.txt\n",
             "tests/check.pl": "print -s '/srv/totals.txt' ? 'ok' : 'FAIL';\n"},
            "vacuous/runner-fails",
        ),
    ],
    ids=["right", "untrying", "runner"],
)  # fmt: skip
async def test_probes_find_what_reading_does_not(tmp_path: Path, files: Files, kind: str | None) -> None:
    check = CheckPlan(
        environment_config("local"), tmp_path / "trials", repeat=1, try_exploits=False, verify_paths="off"
    )
    plan = AuditPlan(tmp_path / "audit", check, sandbox="local", vary=False)
    result = await audit_tasks([sourced(write_seed(tmp_path / "task", files))], plan)
    assert (result.receipts[0].verdict, kinds(result.receipts)["task"]) == ("ok", set() if kind is None else {kind})
