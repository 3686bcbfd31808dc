"""``check_env``: the contract of an environment, for authors of subclasses and wrappers."""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.sandboxes.extensions import DeclaresKnownFailures
from harbor_gym.testing.conformance.behaviours import Behaviour, observe, select
from harbor_gym.testing.conformance.env_probe import EnvProbe, MakeEnv
from harbor_gym.testing.conformance.episodes import EPISODES, FAILURES, ORDER
from harbor_gym.testing.conformance.report import Report

ENV_BEHAVIOURS: tuple[Behaviour[EnvProbe], ...] = (*ORDER, *EPISODES, *FAILURES)
"""The behaviours of every environment, in order of checking."""


async def check_env(
    make_env: MakeEnv,
    config: TerminalEnvConfig | None = None,
    *,
    only: Collection[str] | None = None,
    known_failures: Mapping[str, str] | None = None,
    probe_known_failures: bool = False,
    timeout_sec: float = 120.0,
) -> Report:
    """Check an environment against the contract of :class:`harbor_gym.AsyncTerminalGymEnv`.

    Every behaviour makes environments of its own, with budgets that suit it, and closes them.

    Args:
        make_env: Makes an environment of a configuration: a class, or a function that puts wrappers around one. The
            budgets, the action format and the sandbox of the configuration that it is given must reach the environment.
        config: A task whose sandbox has a shell. None: a task in memory, on :class:`FakeEnvironment`, in milliseconds.
            The checks' actions write and read files in the working directory; nobody asks whether the task is solved.
        only: Names of behaviours or of families (``order``, ``episodes``, ``failures``); None is all.
        known_failures: Behaviour → why this environment does not do it, on top of its class's attribute of that name.
        probe_known_failures: Check also known failures; one that holds after all is a failure then.
        timeout_sec: A behaviour that takes longer has failed.

    Returns:
        One outcome per behaviour; an exception of a behaviour becomes its outcome.

    Raises:
        UsageError: There is no such behaviour.
    """
    reasons = {**_declared(make_env), **(known_failures or {})}
    behaviours = select(ENV_BEHAVIOURS, only=only, known_failures=reasons)
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("check"), ignore_cleanup_errors=True) as directory:
        probe = EnvProbe(make_env, config, Path(directory))
        outcomes = [
            await observe(
                behaviour,
                probe,
                known_failures=reasons.get(behaviour.name),
                probe_known_failures=probe_known_failures,
                timeout_sec=timeout_sec,
            )
            for behaviour in behaviours
        ]
    return Report(getattr(make_env, "__qualname__", repr(make_env)), tuple(outcomes))


def _declared(make_env: object) -> Mapping[str, str]:
    return make_env.known_failures if isinstance(make_env, DeclaresKnownFailures) else {}
