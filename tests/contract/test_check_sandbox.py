"""``check_sandbox``: one contract over all our kinds of sandboxes, and that each of its behaviours can break."""

import asyncio
import json
import subprocess
import sys
from typing import Any, override

import pytest

from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.sandboxes.compose.reader import compose_program
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.testing import (
    SANDBOX_BEHAVIOURS,
    ConformanceError,
    FakeEnvironment,
    Outcome,
    Report,
    Verdict,
    check_sandbox,
)
from tests.helpers.bases import ensure_base_tar
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.rootless import rootless_user, run_as
from tests.helpers.sandboxes import broken
from tests.helpers.sandboxes.broken import Broken
from tests.helpers.tasks import BASE
from tests.unit.house.test_cli import run

AT_ONCE = 8
_SOCKETS = "socket_buffers_end_at_the_sandboxs_own_limit"
"""Needs a control group, which an ordinary user may not have."""
_SERVICES = {item.name for item in SANDBOX_BEHAVIOURS if item.family == "services"}
"""With Compose; on apptainer with the option ``network=task``, which is not its default."""
BROKEN_AT_ONCE = 6
"""They mostly wait for events that never come."""

SANDBOXES = [
    pytest.param(FakeEnvironment, AT_ONCE, id="fake"),
    pytest.param("local", AT_ONCE, id="local", marks=pytest.mark.local),
    pytest.param("apptainer", AT_ONCE, id="apptainer", marks=pytest.mark.apptainer),
    pytest.param("docker", 4, id="docker", marks=[pytest.mark.docker, pytest.mark.slow]),
]
"""The sandboxes that keep the contract, and how many behaviours at once."""


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> None:
    """Skip the engines that this machine lacks."""
    for name in ("local", "apptainer", "docker"):
        if request.node.get_closest_marker(name) is not None:
            require_engine(name)
    if request.node.get_closest_marker("docker") is not None:
        subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("sandbox", "at_once"), SANDBOXES)
async def test_every_kind_shows_every_behaviour_but_its_known_failures(sandbox: Any, at_once: int) -> None:
    report = await check_sandbox(sandbox, concurrency=at_once, probe_known_failures=True)
    assert not report.failures, str(report)
    assert len(report.outcomes) == len(SANDBOX_BEHAVIOURS)
    if sandbox in ("local", "apptainer"):
        lacking = {item.name for item in report.outcomes if item.verdict is not Verdict.PASSED}
        may_lack = set[str]() if "memory" in cgroups.places() else {_SOCKETS}
        if sandbox == "apptainer" or compose_program() is None:
            may_lack |= _SERVICES
        assert lacking <= may_lack, report


@pytest.mark.parametrize(
    "sandbox", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("local", "apptainer")]
)
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_an_ordinary_users_sandbox_shows_every_behaviour(sandbox: str) -> None:
    base = await ensure_base_tar()
    command = [sys.executable, "-m", "harbor_gym", "check-sandbox", "--env", sandbox, "--json", "--concurrency", "8"]

    def check() -> subprocess.CompletedProcess[str]:
        with rootless_user() as (user, home):
            done = run_as(user, home, *command, base=base)
            left = subprocess.run(["pgrep", "-u", user, "-a"], capture_output=True, text=True, check=False)
            assert left.stdout == ""
        return done

    done = await asyncio.to_thread(check)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert len(outcomes) == len(SANDBOX_BEHAVIOURS)
    lacking = {item["name"] for item in outcomes if item["verdict"] != Verdict.PASSED.value}
    assert lacking <= {_SOCKETS, *_SERVICES}, done.stdout


def test_the_contract_has_many_behaviours_each_with_a_name_and_a_sentence() -> None:
    names = {item.name for item in SANDBOX_BEHAVIOURS}
    assert len(names) == len(SANDBOX_BEHAVIOURS) >= 40
    assert all(item.contract.endswith(".") for item in SANDBOX_BEHAVIOURS)


# --- each behaviour can break ----------------------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_every_broken_sandbox_is_noticed_by_all_that_should() -> None:
    room = asyncio.Semaphore(BROKEN_AT_ONCE)

    async def check(broken: type[Broken]) -> Report:
        async with room:
            return await check_sandbox(broken, only=broken.breaks, concurrency=AT_ONCE, timeout_sec=3)

    async with asyncio.TaskGroup() as group:
        checks = {kind: group.create_task(check(kind)) for kind in broken.ALL}
    for kind, task in checks.items():
        report = task.result()
        assert {item.name for item in report.failures} == set(kind.breaks), str(report)


def test_no_behaviour_is_without_a_sandbox_that_breaks_it() -> None:
    noticed = {name for kind in broken.ALL for name in kind.breaks}
    assert {item.name for item in SANDBOX_BEHAVIOURS} == noticed


# --- the check itself ------------------------------------------------------------------------------------------------


async def test_what_is_on_record_as_a_known_failure_is_shown_with_its_reason_and_is_no_failure() -> None:
    report = await check_sandbox(FakeEnvironment, only=["orphans_are_reaped", "unicode_goes_in_and_out"])
    report.raise_for_failures()
    assert report["orphans_are_reaped"].verdict is Verdict.KNOWN_FAILURE
    assert "it runs no processes" in str(report)


async def test_a_record_that_is_out_of_date_is_a_failure() -> None:
    name = "unicode_goes_in_and_out"
    report = await check_sandbox(
        FakeEnvironment, only=[name], known_failures={name: "it is old"}, probe_known_failures=True
    )
    with pytest.raises(ConformanceError, match="it holds, though"):
        report.raise_for_failures()


class Unstartable(FakeEnvironment):
    """A sandbox that no check may start."""

    @override
    async def start(self, *_: Any, **__: Any) -> None:
        pytest.fail("it was started")


async def test_a_name_that_is_no_behaviours_is_refused_before_a_sandbox_is_started() -> None:
    with pytest.raises(UsageError, match="no_such_thing"):
        await check_sandbox(Unstartable, only=["no_such_thing"])
    with pytest.raises(UsageError, match="nor_this"):
        await check_sandbox(Unstartable, known_failures={"nor_this": "why"})


async def test_a_sandbox_that_does_not_start_is_no_report() -> None:
    class NeverStarts(FakeEnvironment):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, fail={"start": 1}, **kwargs)

    with pytest.raises(SandboxStartError):
        await check_sandbox(NeverStarts)


async def test_a_behaviour_that_breaks_the_sandbox_does_not_take_the_next_ones_with_it() -> None:
    class GoesWithANul(FakeEnvironment):
        async def exec(self, command: str, *args: Any, **kwargs: Any) -> Any:
            if "\0" in command:
                await self.stop(delete=True)
            return await super().exec(command, *args, **kwargs)

    names = ["a_nul_is_refused_and_harms_nothing", "the_exit_code_is_the_commands_own", "cwd_is_the_calls"]
    report = await check_sandbox(GoesWithANul, only=names)
    assert [item.name for item in report.failures] == names[:1]


async def test_a_sandbox_that_can_not_be_replaced_fails_the_rest() -> None:
    class StartsOnce(FakeEnvironment):
        starts = 0

        async def start(self, force_build: bool) -> None:
            StartsOnce.starts += 1
            if StartsOnce.starts > 1:
                raise SandboxStartError("there is no other one")
            await super().start(force_build)

        async def exec(self, command: str, *args: Any, **kwargs: Any) -> Any:
            await self.stop(delete=True)
            return await super().exec(command, *args, **kwargs)

    names = ["the_exit_code_is_the_commands_own", "cwd_is_the_calls"]
    report = await check_sandbox(StartsOnce, only=names)
    assert [item.name for item in report.failures] == names


def test_a_report_without_a_pass_is_no_success() -> None:
    skipped = Outcome("name", "family", "What must hold.", Verdict.NOT_APPLICABLE, "why")
    for outcomes in ((), (skipped,)):
        with pytest.raises(ConformanceError):
            Report("subject", outcomes).raise_for_failures()


def test_the_command_prints_a_table_or_json_and_reports_failure_by_its_status() -> None:
    arguments = ("check-sandbox", "--env", "harbor_gym.testing:FakeEnvironment", "--only", "environment")
    done = run(*arguments)
    assert done.returncode == 0, done
    assert "it has no image" in done.stdout
    report = json.loads(run(*arguments, "--json").stdout)
    assert report["ok"]
    assert {item["family"] for item in report["outcomes"]} == {"environment"}
    misused = run("check-sandbox", "--env", "harbor_gym.testing:FakeEnvironment", "--only", "nonsense")
    assert (misused.returncode, misused.stdout) == (2, "")
    assert "nonsense" in misused.stderr
