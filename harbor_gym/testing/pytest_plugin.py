"""A pytest plugin for authors of sandboxes and of environments: the contracts as tests, and a check for leftovers.

Name it in the top ``conftest.py``; it is no entry point, so that a project pays for it only where it asks for it::

    pytest_plugins = ["harbor_gym.testing.pytest_plugin"]

A class that inherits from :class:`SandboxContract` or :class:`EnvContract` is one test per behaviour.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing import resource_tracker
from typing import Any, ClassVar, cast

import pytest

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.testing.conformance.environments import ENV_BEHAVIOURS, check_env
from harbor_gym.testing.conformance.report import Outcome, Verdict
from harbor_gym.testing.conformance.sandboxes import (
    SANDBOX_BEHAVIOURS,
    SandboxChecker,
    Settings,
    sandbox_checker,
)
from harbor_gym.testing.leftovers import find_leftovers

_SETTLE_SEC = 60.0
"""Grace period for processes and folders to disappear after a test. Only a leftover is waited for so long."""

_SANDBOX_BEHAVIOURS = {item.name: item for item in SANDBOX_BEHAVIOURS}


class SandboxContract:
    """The contract of a sandbox, a test per behaviour. Subclass it as ``class TestMine(SandboxContract)``.

    The sandboxes are started once for the class, and again if a behaviour broke one. A known failure is shown as
    ``xfail``, and fails if it holds; behaviours outside the sandbox's capabilities are skipped.
    """

    sandbox: ClassVar[Any]
    """As for :func:`harbor_gym.testing.check_sandbox`: a class, a name as ``--env`` takes it, or a configuration."""

    known_failures: ClassVar[Mapping[str, str]] = {}
    """Behaviour → why it does not hold for this kind of sandbox."""

    timeout_sec: ClassVar[float] = 120.0
    """A behaviour that takes longer, in seconds, has failed."""

    @pytest.mark.parametrize("behaviour", list(_SANDBOX_BEHAVIOURS))
    def test_behaviour(self, behaviour: str, harbor_gym_sandbox_check: Callable[[str], Outcome]) -> None:
        """Check one behaviour."""
        _judge(harbor_gym_sandbox_check(behaviour))


class EnvContract:
    """The contract of :class:`harbor_gym.AsyncTerminalGymEnv`, a test per behaviour, for subclasses and wrappers."""

    known_failures: ClassVar[Mapping[str, str]] = {}
    """Behaviour → why it does not hold for this environment."""

    config: ClassVar[TerminalEnvConfig | None] = None
    """The task of the check; None takes an in-memory one, see :func:`harbor_gym.testing.check_env`."""

    timeout_sec: ClassVar[float] = 120.0
    """A behaviour that takes longer, in seconds, has failed."""

    def make_env(self, config: TerminalEnvConfig) -> Any:
        """Return an environment with this configuration; override this method."""
        raise NotImplementedError(f"{type(self).__name__}.make_env returns the environment to check")

    @pytest.mark.parametrize("behaviour", [item.name for item in ENV_BEHAVIOURS])
    def test_behaviour(self, behaviour: str) -> None:
        """Check one behaviour."""
        check = check_env(
            self.make_env,
            self.config,
            only=[behaviour],
            known_failures=self.known_failures,
            probe_known_failures=True,
            timeout_sec=self.timeout_sec,
        )
        _judge(asyncio.run(check)[behaviour])


@pytest.fixture(scope="class")
def harbor_gym_sandbox_check(request: pytest.FixtureRequest) -> Generator[Callable[[str], Outcome]]:
    """Yield the checker of behaviours, with the sandboxes of the requesting class."""
    contract = cast("type[SandboxContract]", request.cls)
    settings = Settings(contract.known_failures, probe_known_failures=True, timeout_sec=contract.timeout_sec)
    with asyncio.Runner() as runner, _opened(runner, contract.sandbox, settings) as checker:
        yield lambda name: runner.run(checker.check(_SANDBOX_BEHAVIOURS[name]))


@contextlib.contextmanager
def _opened(runner: asyncio.Runner, sandbox: Any, settings: Settings) -> Generator[SandboxChecker]:
    stack = contextlib.AsyncExitStack()
    checker = runner.run(stack.enter_async_context(sandbox_checker(sandbox, settings)))
    try:
        yield checker
    finally:
        runner.run(stack.aclose())


def _judge(outcome: Outcome) -> None:
    contract = " ".join(outcome.contract.split())
    match outcome.verdict:
        case Verdict.PASSED:
            return
        case Verdict.FAILED:
            pytest.fail(f"{outcome.name}: {outcome.reason}\ncontract: {contract}", pytrace=False)
        case Verdict.NOT_APPLICABLE:
            pytest.skip(outcome.reason)
        case Verdict.KNOWN_FAILURE:
            pytest.xfail(outcome.reason)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a process, a mount or a temporary folder of harbor_gym behind."""
    before = find_leftovers(is_exempt=_lives_on)
    yield
    deadline = time.monotonic() + _SETTLE_SEC
    while (left := find_leftovers(is_exempt=_lives_on) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {sorted(left)}"


def _lives_on(pid: int) -> bool:
    """Return whether a process lives as long as this one: our fork server, or Python's resource tracker."""
    from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # pyright: ignore[reportPrivateUsage]  # nothing public has it
    return pid in (forkserver_pid(), tracker)
