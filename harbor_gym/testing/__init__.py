"""Public conformance checks and an in-memory sandbox, for authors of sandboxes and of environment wrappers.

**You wrote a Harbor environment class** (or chose a provider) and need to know whether episodes can rely on it::

    report = await check_sandbox("my_package.sandbox:MyEnvironment")   # or a class, or a name as --env takes it
    print(report)
    report.raise_for_failures()

or ``harbor-gym check-sandbox --env my_package.sandbox:MyEnvironment``. Each behaviour is a small check with a name
and a contract: commands, environment, users, interruptions, uploads, downloads, folders, limits,
confinement, terminal, life.
List the behaviours that your class lacks on purpose in its attribute ``known_failures: Mapping[str, str]``, behaviour
→ reason: they are shown and don't fail the report; with ``probe_known_failures=True`` one that holds does fail it.
:mod:`harbor_gym.testing.pytest_plugin` runs the behaviours as tests.

**You subclass or wrap** :class:`harbor_gym.AsyncTerminalGymEnv`::

    report = await check_env(lambda config: MyWrapper(AsyncTerminalGymEnv(config)))
    report.raise_for_failures()

That runs on :class:`FakeEnvironment`, in milliseconds; give it a configuration to run on a real sandbox.

**You test the code around a sandbox** (rewards, retries, budgets, adapters) and need no engine::

    TerminalEnvConfig(
        task_dir=...,
        sandbox="harbor_gym.testing:FakeEnvironment",
        sandbox_options={
            "answers": {"make": ["error 2\\n", 2]},
            "solved_when": {"/srv/answer": "done"},
            "fail": {"exec": 3},
        },
    )

The fake reads a few words of shell (``echo done > answer``, ``cat``, ``&&`` …) and runs no process.
"""

from harbor_gym.testing.conformance.behaviours import NotApplicable, Violation
from harbor_gym.testing.conformance.env_probe import write_tiny_task
from harbor_gym.testing.conformance.environments import ENV_BEHAVIOURS, check_env
from harbor_gym.testing.conformance.known_failures import KNOWN_FAILURES
from harbor_gym.testing.conformance.report import ConformanceError, Outcome, Report, Verdict
from harbor_gym.testing.conformance.sandboxes import SANDBOX_BEHAVIOURS, check_sandbox
from harbor_gym.testing.fake.environment import FakeEnvironment

__all__ = [
    "ENV_BEHAVIOURS",
    "KNOWN_FAILURES",
    "SANDBOX_BEHAVIOURS",
    "ConformanceError",
    "FakeEnvironment",
    "NotApplicable",
    "Outcome",
    "Report",
    "Verdict",
    "Violation",
    "check_env",
    "check_sandbox",
    "write_tiny_task",
]
