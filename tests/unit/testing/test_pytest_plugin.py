"""The plugin as an author of a sandbox uses it: in a project of its own, with a good subject and with a broken one."""

import re
import subprocess
import sys

import pytest

from harbor_gym.testing import ENV_BEHAVIOURS, SANDBOX_BEHAVIOURS
from tests.helpers.paths import ROOT

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["harbor_gym.testing.pytest_plugin"]\n'
QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio")
"""The plugin needs no other one."""

GOOD_SANDBOX = """
from harbor_gym.testing import FakeEnvironment
from harbor_gym.testing.pytest_plugin import SandboxContract

class TestFake(SandboxContract):
    sandbox = FakeEnvironment
"""

BROKEN_SANDBOX = """
from harbor.environments.base import ExecResult
from harbor_gym.testing import FakeEnvironment
from harbor_gym.testing.pytest_plugin import SandboxContract

class AlwaysSucceeds(FakeEnvironment):
    async def exec(self, *args, **kwargs):
        result = await super().exec(*args, **kwargs)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=0)

class TestBroken(SandboxContract):
    sandbox = AlwaysSucceeds
"""

ENVIRONMENTS = """
from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.testing.pytest_plugin import EnvContract

class Silent(AsyncTerminalGymEnv):
    async def step(self, action):
        return (await super().step(action))._replace(observation="")

class TestGood(EnvContract):
    def make_env(self, config):
        return AsyncTerminalGymEnv(config)

class TestSilent(EnvContract):
    def make_env(self, config):
        return Silent(config)
"""

LEFTOVERS = """
import subprocess, tempfile
import pytest
from harbor_gym.testing import pytest_plugin

pytest_plugin._SETTLE_SEC = 0.5
pytestmark = pytest.mark.usefixtures("nothing_left")

def test_clean():
    subprocess.run(["true"])

def test_a_process():
    subprocess.Popen(["sleep", "30"], start_new_session=True)

def test_a_folder():
    tempfile.mkdtemp(prefix="harbor-gym-left-")
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An author's project that uses the plugin."""
    pytester.makeconftest(CONFTEST)
    return pytester


def names(result: pytest.RunResult, verdict: str) -> set[str]:
    """Return the behaviours with a verdict, from pytest's own summary."""
    found = (line.split(" - ")[0] for line in result.outlines if line.startswith(f"{verdict} "))
    return {line.partition("[")[2].rstrip("]") for line in found if "[" in line}


def test_the_fake_keeps_the_contract_a_test_per_behaviour(project: pytest.Pytester) -> None:
    project.makepyfile(test_mine=GOOD_SANDBOX)
    outcomes = project.runpytest_inprocess(*QUIET).parseoutcomes()
    assert "failed" not in outcomes
    assert "errors" not in outcomes
    assert outcomes["passed"] > 10
    assert sum(outcomes.get(word, 0) for word in ("passed", "skipped", "xfailed")) == len(SANDBOX_BEHAVIOURS)


def test_a_broken_sandbox_fails_by_the_names_of_what_it_breaks(project: pytest.Pytester) -> None:
    project.makepyfile(test_mine=BROKEN_SANDBOX)
    result = project.runpytest_inprocess(*QUIET, "-rf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failed = names(result, "FAILED")
    assert "the_exit_code_is_the_commands_own" in failed
    assert "stdout_arrives_as_it_was_printed" not in failed
    result.stdout.fnmatch_lines(["*contract: *"])


def test_a_single_behaviour_can_be_chosen_and_known_failures_are_shown_as_such(project: pytest.Pytester) -> None:
    reasons = '    known_failures = {"the_exit_code_is_the_commands_own": "it always succeeds"}\n'
    project.makepyfile(test_mine=BROKEN_SANDBOX + reasons)
    result = project.runpytest_inprocess(*QUIET, "-rx", "-k", "the_exit_code_is_the_commands_own")
    result.assert_outcomes(xfailed=1, deselected=len(SANDBOX_BEHAVIOURS) - 1)
    result.stdout.fnmatch_lines(["*it always succeeds*"])


def test_a_known_failure_that_holds_after_all_and_a_name_that_is_none_fail(project: pytest.Pytester) -> None:
    outdated = '    known_failures = {"stdout_arrives_as_it_was_printed": "once"}\n'
    project.makepyfile(test_mine=BROKEN_SANDBOX + outdated)
    result = project.runpytest_inprocess(*QUIET, "-k", "stdout_arrives_as_it_was_printed")
    result.assert_outcomes(failed=1, deselected=len(SANDBOX_BEHAVIOURS) - 1)
    project.makepyfile(test_mine=BROKEN_SANDBOX + '    known_failures = {"no_such_behaviour": "?"}\n')
    result = project.runpytest_inprocess(*QUIET, "-k", "stdout_arrives_as_it_was_printed")
    result.assert_outcomes(errors=1, deselected=len(SANDBOX_BEHAVIOURS) - 1)
    result.stdout.fnmatch_lines(["*no behaviour is called no_such_behaviour*"])


def test_the_contract_of_an_environment(project: pytest.Pytester) -> None:
    project.makepyfile(test_mine=ENVIRONMENTS)
    result = project.runpytest_inprocess(*QUIET, "-rf", "-k", "TestGood")
    result.assert_outcomes(passed=len(ENV_BEHAVIOURS), deselected=len(ENV_BEHAVIOURS))
    result = project.runpytest_subprocess(*QUIET, "-rf", "-k", "TestSilent")
    assert names(result, "FAILED"), "an environment that shows nothing breaks the contract"


def test_leftovers_fail_the_test_that_leaves_them(project: pytest.Pytester) -> None:
    project.makepyfile(test_mine=LEFTOVERS)
    result = project.runpytest_subprocess(*QUIET, "-rE")
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*left behind: *process * sleep*", "*left behind: *harbor-gym-left-*"])


def test_the_plugin_is_light_and_starts_nothing() -> None:
    code = "import sys, harbor_gym.testing.pytest_plugin as p; print('tinker' in sys.modules, 'litellm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False"]


def test_the_pages_blocks_run(project: pytest.Pytester) -> None:
    page = (ROOT / "docs/sandbox-authors.md").read_text()
    sandbox, env = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    conftest, _, test_file = sandbox.partition("# test_my_sandbox.py\n")
    assert conftest.strip().endswith(CONFTEST.strip())
    named = test_file.replace('"my_package.sandbox:MySandbox"', '"harbor_gym.testing:FakeEnvironment"')
    project.makepyfile(test_my_sandbox=named, test_my_wrapper=env)
    result = project.runpytest_inprocess(*QUIET, "-rf")
    # The fake keeps the behaviour that the page's example lists as a known failure, and that is reported.
    failed = [line for line in result.outlines if line.startswith("FAILED")]
    assert [line.split("[")[1].split("]")[0] for line in failed] == ["odd_names_are_names"]
    assert result.parseoutcomes()["passed"] >= len(ENV_BEHAVIOURS)
