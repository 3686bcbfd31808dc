"""Play a sound task under other conditions: one processor, load, another time zone and host name, no network."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym.checking.audit.contents import TaskContents
from harbor_gym.checking.audit.kinds import LONGEST, finding
from harbor_gym.checking.oracle import Oracle, do_nothing
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.play import Work, play
from harbor_gym.checking.verdict import SOLVED, SOUND, UNSOLVED, TaskCheck
from harbor_gym.errors import HarborGymError, SandboxError, TaskUnsupportedError, TerminalError
from harbor_gym.sandboxes.registry import APPTAINER, LOCAL, sandbox_name
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.tasks.receipts import Evidence, Finding

if TYPE_CHECKING:
    from harbor.models.task.config import TaskConfig
    from harbor.models.trial.config import EnvironmentConfig

_CONDITIONS = {
    "one-processor": ("flaky/one-processor", "on one processor"),
    "under-load": ("flaky/under-load", "with a quarter of a processor's time"),
    "time-zone": ("flaky/time-zone", "in another time zone"),
    "host-name": ("flaky/host-name", "under another host name"),
    "no-network": ("hygiene/needs-network", "without a network"),
}
"""Condition → the kind of its finding, and what it is called."""

_HOST_NAME = "elsewhere"
_SHARE = 0.25
"""Processors: what is left of one beside three busy programs."""

_PINNED_ZONE = re.compile(r"\bTZ\b|/etc/(?:localtime|timezone)")


@dataclass(frozen=True, slots=True)
class _Result:
    """What an agent got under some conditions."""

    reward: float | None
    """None: no verdict."""

    output: str

    @property
    def words(self) -> str:
        return "has no verdict" if self.reward is None else f"scores {self.reward:g}"


def conditions_of(environment: EnvironmentConfig) -> tuple[str, ...]:
    """Return the conditions that a sandbox can make here: every sandbox passes a time zone on, as a variable.

    Args:
        environment: The sandbox, as :func:`harbor_gym.sandboxes.environment_config` returns it.
    """
    if (name := sandbox_name(environment)) in (LOCAL, APPTAINER):
        return tuple(each for each in _CONDITIONS if each != "under-load" or "cpu" in cgroups.places())
    return ("one-processor", "time-zone") if name == "docker" else ("time-zone",)


async def find_by_conditions(task_dir: Path, check: TaskCheck, plan: CheckPlan) -> AsyncIterator[Finding]:
    """Yield which condition changes the reward of the solution or of doing nothing, of a task that seems sound.

    All conditions are tried together first. Only if that changes the reward, each is tried alone, and what differs is
    tried once more: chance is no condition's finding.

    Args:
        task_dir: The task's directory.
        check: The result of its check.
        plan: How it was checked.
    """
    from harbor_gym.episode.task import load_task

    if check.verdict not in SOUND:
        return
    config = (await load_task(task_dir)).config
    names = [name for name in conditions_of(plan.environment) if not _is_decided(name, config, task_dir, plan)]
    agents: list[tuple[str, Callable[[], Work], float]] = [("doing nothing", lambda: do_nothing, UNSOLVED)]
    if check.has_solution:
        agents.insert(0, ("the solution", lambda: Oracle(task_dir), SOLVED))
    for agent, work, expected in agents:

        async def differs(
            tried: Sequence[str], work: Callable[[], Work] = work, expected: float = expected
        ) -> _Result | None:
            varied = replace(plan, environment=_under(plan.environment, tried))
            result = await _result(task_dir, work(), varied)
            return None if result is None or result.reward == expected else result

        together = await differs(names) if names else None
        if together is None:
            continue
        found = {name: result for name in names if (result := await differs([name])) is not None}
        for name, result in found.items():
            kind, words = _CONDITIONS[name]
            if await differs([name]) is not None:
                yield finding(kind, f"{words} {agent} {result.words}, not {expected:g}", _evidence(name, result))
            else:
                message = f"{agent} {result.words} once {words}, and {expected:g} in its other runs"
                yield finding("flaky/differs", message, _evidence(name, result))
        if not found:
            all_words = ", ".join(_CONDITIONS[name][1] for name in names)
            message = f"{agent} {together.words} once {all_words}, and {expected:g} under each of these alone"
            yield finding("flaky/differs", message, _evidence(" ".join(names), together))
        names = [name for name in names if name not in found]


def _is_decided(name: str, config: TaskConfig, task_dir: Path, plan: CheckPlan) -> bool:
    """Return whether the task declares the condition's opposite, or its trials have the condition already."""
    environment = config.environment
    match name:
        case "one-processor":
            return environment.cpus is not None
        case "time-zone":
            files = TaskContents(task_dir).below("environment")
            return "TZ" in environment.env or any(_PINNED_ZONE.search(file.text) for file in files)
        case "no-network":
            return plan.environment.kwargs.get("network") == "none" or _declares_network(config)
        case _:
            return False


def _declares_network(config: TaskConfig) -> bool:
    """Return whether a task says of any of its parts which network that has; the default is a public one."""
    steps = config.steps or []
    phases = [config.agent, config.verifier, *(phase for step in steps for phase in (step.agent, step.verifier))]
    verifiers = [config.verifier, *(step.verifier for step in steps)]
    baselines = [config.environment, *(one.environment for one in verifiers if one.environment is not None)]
    return any(phase.network_mode is not None for phase in phases) or any(
        "network_mode" in baseline.model_fields_set for baseline in baselines
    )


def _under(environment: EnvironmentConfig, names: Sequence[str]) -> EnvironmentConfig:
    """Return a sandbox's configuration under conditions."""
    is_supervised = "host-name" in conditions_of(environment)
    options: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    if "one-processor" in names:
        changed["override_cpus"] = 1
        options |= {"processor_set": True} if is_supervised else {}
    if "under-load" in names:
        options["processor_time"] = _SHARE
    if "time-zone" in names:
        changed["env"] = {**environment.env, "TZ": _other_zone(datetime.now(UTC).hour)}
    if "host-name" in names:
        options["host_name"] = _HOST_NAME
    if "no-network" in names:
        options["network"] = "none"
    return environment.model_copy(update={**changed, "kwargs": {**environment.kwargs, **options}})


def _other_zone(hour: int) -> str:
    """Return a time zone in which the date is not that of UTC, in a form that needs no file of zones.

    Args:
        hour: The present hour in UTC.
    """
    return "GMT+12" if hour < 11 else "GMT-14"


async def _result(task_dir: Path, work: Work, plan: CheckPlan) -> _Result | None:
    """Play an episode; return None where the sandbox can't make the conditions, or goes away."""
    try:
        played = await play(task_dir, work, plan, verify_paths="off", ambiguous_failures="infrastructure")
    except (SandboxError, TerminalError, TaskUnsupportedError):
        return None
    except HarborGymError as exc:
        return _Result(None, f"{exc}\n{exc.diagnostics.get('verifier_output', '')}")
    return _Result(played.reward, played.output)


def _evidence(what: str, result: _Result) -> list[Evidence]:
    return [Evidence(text=f"{what}\n{result.output}".strip()[-LONGEST:], reward=result.reward)]
