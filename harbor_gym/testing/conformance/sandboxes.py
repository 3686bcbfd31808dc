"""``check_sandbox``: one contract for every kind of sandbox."""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harbor.environments.base import BaseEnvironment
from harbor.models.trial.config import EnvironmentConfig

from harbor_gym import sandboxes
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.sandboxes.extensions import DeclaresKnownFailures
from harbor_gym.testing.conformance import (
    commands,
    confinement,
    files,
    grading,
    interruptions,
    isolation,
    services,
)
from harbor_gym.testing.conformance.behaviours import Behaviour, observe, select
from harbor_gym.testing.conformance.known_failures import KNOWN_FAILURES
from harbor_gym.testing.conformance.probe import DOCKERFILE, MakeSandbox, Probe
from harbor_gym.testing.conformance.report import Outcome, Report, Verdict

SANDBOX_BEHAVIOURS: tuple[Behaviour[Probe], ...] = (
    *commands.COMMANDS,
    *commands.ENVIRONMENT,
    *commands.USERS,
    *interruptions.INTERRUPTIONS,
    *files.UPLOADS,
    *files.DOWNLOADS,
    *isolation.FOLDERS,
    *isolation.LIMITS,
    *confinement.CONFINEMENT,
    *grading.GRADING,
    *services.SERVICES,
    *isolation.TERMINAL,
    *isolation.LIFE,
)
"""The behaviours of every sandbox, in order of checking."""


async def check_sandbox(
    sandbox: str | EnvironmentConfig | MakeSandbox,
    *,
    only: Collection[str] | None = None,
    known_failures: Mapping[str, str] | None = None,
    probe_known_failures: bool = False,
    concurrency: int = 1,
    dockerfile: str = DOCKERFILE,
    timeout_sec: float = 120.0,
) -> Report:
    """Check a kind of sandbox against the contract that harbor_gym and Harbor's trials rely on.

    Up to three sandboxes are started, one after the other as they are needed, and stopped at the end. Behaviours run
    one by one and clean up by being gone: never run this on a sandbox that somebody uses.

    Args:
        sandbox: A name as ``--env`` takes it, Harbor's configuration of an environment, or a function of
            the keyword arguments of Harbor's ``BaseEnvironment``: a class, or a ``functools.partial`` of one.
        only: Names of behaviours or of families (``commands``, ``uploads`` …); None is all.
        known_failures: Behaviour → why this kind does not do it. It is put on the class's own list: a class may have
            an attribute ``known_failures`` of the same shape.
        probe_known_failures: Check also known failures; one that holds after all is a failure then.
        concurrency: So many behaviours at once: quicker, but one that breaks the sandbox takes others with it.
        dockerfile: The image. Another one must have the variables, the folder and the user of :data:`DOCKERFILE`.
        timeout_sec: A behaviour that takes longer has failed.

    Returns:
        One outcome per behaviour; an exception of a behaviour becomes its outcome.

    Raises:
        UsageError: There is no such sandbox or behaviour.
        Exception: The sandbox's own error if it can't be made or started: then nothing can be checked.
    """
    settings = Settings(known_failures or {}, probe_known_failures, dockerfile, timeout_sec)
    select(SANDBOX_BEHAVIOURS, only=only, known_failures=settings.known_failures)  # refused before an image is built
    async with sandbox_checker(sandbox, settings) as checker:
        behaviours = select(SANDBOX_BEHAVIOURS, only=only, known_failures=checker.known_failures)
        found = await _observe_all(behaviours, checker, concurrency)
    return Report(checker.label, tuple(found[item.name] for item in behaviours))


@dataclass(frozen=True)
class Settings:
    """The settings of a check: the arguments of :func:`check_sandbox`."""

    known_failures: Mapping[str, str] = field(default_factory=dict[str, str])
    probe_known_failures: bool = False
    dockerfile: str = DOCKERFILE
    timeout_sec: float = 120.0


class SandboxChecker:
    """Checks single behaviours in shared sandboxes; made by :func:`sandbox_checker`."""

    def __init__(self, probe: Probe, label: str, known_failures: Mapping[str, str], settings: Settings) -> None:
        self.label = label
        self.known_failures = known_failures
        self._probe = probe
        self._settings = settings

    async def check(self, behaviour: Behaviour[Probe]) -> Outcome:
        """Check one behaviour, and replace a sandbox that it broke."""
        while True:
            asked = self._probe.sandbox
            outcome = await observe(
                behaviour,
                self._probe,
                known_failures=self.known_failures.get(behaviour.name),
                probe_known_failures=self._settings.probe_known_failures,
                timeout_sec=self._settings.timeout_sec,
            )
            if outcome.verdict is not Verdict.PASSED or self._probe.sandbox is asked:
                break
            # One that broke the sandbox had it replaced meanwhile: half a check of each proves nothing.
        if outcome.verdict is Verdict.FAILED:
            with contextlib.suppress(Exception):  # If no new one starts, every further outcome says why.
                await self._probe.prepare()
        return outcome


@contextlib.asynccontextmanager
async def sandbox_checker(
    sandbox: str | EnvironmentConfig | MakeSandbox, settings: Settings
) -> AsyncGenerator[SandboxChecker]:
    """Start a sandbox to check, and stop all sandboxes of the check at the end.

    Raises:
        UsageError: There is no such sandbox, or a known failure names no behaviour.
        Exception: The sandbox's own error if it can't be made or started.
    """
    make_sandbox, label = _maker(sandbox)
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("check"), ignore_cleanup_errors=True) as directory:
        probe = Probe(make_sandbox, Path(directory), settings.dockerfile)
        reasons = {**_own_reasons(probe.make()), **settings.known_failures}
        select(SANDBOX_BEHAVIOURS, only=None, known_failures=reasons)
        try:
            await probe.prepare()
            yield SandboxChecker(probe, label, reasons, settings)
        finally:
            await probe.close()


async def _observe_all(
    behaviours: Sequence[Behaviour[Probe]], checker: SandboxChecker, concurrency: int
) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    room = asyncio.Semaphore(concurrency)

    async def take(behaviour: Behaviour[Probe]) -> None:
        async with room:
            found[behaviour.name] = await checker.check(behaviour)

    async with asyncio.TaskGroup() as group:
        for behaviour in behaviours:
            if not behaviour.alone:
                group.create_task(take(behaviour))
    for behaviour in behaviours:
        if behaviour.alone:
            await take(behaviour)
    return found


def _maker(sandbox: str | EnvironmentConfig | MakeSandbox) -> tuple[MakeSandbox, str]:
    if isinstance(sandbox, str):
        return _from_config(sandboxes.environment_config(sandbox)), sandbox
    if isinstance(sandbox, EnvironmentConfig):
        return _from_config(sandbox), sandbox.import_path or str(sandbox.type)
    return sandbox, getattr(sandbox, "__qualname__", repr(sandbox))


def _from_config(config: EnvironmentConfig) -> MakeSandbox:
    from harbor.environments.factory import EnvironmentFactory

    return functools.partial(EnvironmentFactory.create_environment_from_config, config)


def _own_reasons(environment: BaseEnvironment) -> Mapping[str, str]:
    if isinstance(environment, DeclaresKnownFailures):
        return environment.known_failures
    lineage = (f"{kind.__module__}:{kind.__qualname__}" for kind in type(environment).__mro__)
    return next((KNOWN_FAILURES[name] for name in lineage if name in KNOWN_FAILURES), {})
