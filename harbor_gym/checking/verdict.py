"""What a check is told and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor.models.trial.config import EnvironmentConfig

SOLVED = 1.0
"""What the oracle must score."""

UNSOLVED = 0.0
"""What doing nothing must score, and what forging a reward must."""


class Verdict(StrEnum):
    """One word for a task. All but ``OK`` come with a reason."""

    OK = "ok"
    """Solvable, not solved at the start, graded alike each time, not to be cheated by the tricks that were tried."""

    REFUSED = "refused"
    """The sandbox does not run such tasks. It may well pass on another."""

    ERROR = "error"
    """Something could not be graded, or the task is malformed. An error is never a reward."""

    UNSOLVED = "unsolved"
    """The task's own solution does not score 1.0."""

    TRIVIAL = "trivial"
    """Doing nothing scores."""

    UNSTEADY = "unsteady"
    """The same agent scored differently in another run."""

    FORGEABLE = "forgeable"
    """Planting files and leaving a process behind scores, without doing the task."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """How tasks are checked."""

    environment: EnvironmentConfig
    """The sandbox, as :func:`harbor_gym.sandboxes.environment_config` returns it."""

    trials_dir: Path
    """Directory for the trials' folders; the caller owns it."""

    repeat: int = 2
    """Runs of the oracle and of the agent that does nothing, each in a fresh sandbox; 1 says nothing of steadiness."""

    forge: bool = True
    """Whether to try forging the reward."""

    stop_timeout_sec: float = 60.0
    """Seconds that Harbor gets to stop the forger's sandbox."""


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Where a trial's time went, in seconds. A multi-step task's agent and verifier times are sums."""

    start: float
    """Building the image if need be, starting the sandbox, and its healthcheck."""

    agent: float
    """The agent's phase."""

    verify: float
    """The verifier, a sandbox of its own included."""

    stop: float
    """Stopping the sandbox, and what else Harbor does at the end."""


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """The verdict on one task, and what it rests on."""

    task: str
    """Name of the task's directory; of several called the same, ``~2`` and so on tell the second from the first."""

    path: Path
    """The task's directory."""

    source: str | None = None
    """What named the task, as the user wrote it; None where its directory was given."""

    commit: str | None = None
    """The git commit it was taken from."""

    oracle: tuple[float, ...] = ()
    """Rewards of the task's own solution, one a run that was graded."""

    nop: tuple[float, ...] = ()
    """Rewards for doing nothing, one a run that was graded."""

    forged: float | None = None
    """Reward for forging; None when it was not tried or could not be graded."""

    tricks: tuple[str, ...] = ()
    """Which tricks score on their own, where forging did."""

    phases: PhaseSeconds | None = None
    """Where the time of the oracle's last run went."""

    seconds: float = 0.0
    """Wall-clock time of the whole check, other tasks' at the same time included."""

    error: str | None = None
    """What kept a trial from being graded, on one line."""

    refused: bool = False
    """Whether that error is the sandbox's refusal."""

    @property
    def verdict(self) -> Verdict:
        """The one word; of several that apply the one that puts the others in doubt."""
        if self.error is not None:
            return Verdict.REFUSED if self.refused else Verdict.ERROR
        if len(set(self.oracle)) > 1 or len(set(self.nop)) > 1:
            return Verdict.UNSTEADY
        if set(self.oracle) != {SOLVED}:
            return Verdict.UNSOLVED
        if set(self.nop) != {UNSOLVED}:
            return Verdict.TRIVIAL
        return Verdict.OK if self.forged in (None, UNSOLVED) else Verdict.FORGEABLE

    @property
    def ok(self) -> bool:
        """Tell whether there is nothing to complain about."""
        return self.verdict is Verdict.OK

    @property
    def reason(self) -> str | None:
        """One line that says why the task is not ok; None when it is."""
        match self.verdict:
            case Verdict.OK:
                return None
            case Verdict.REFUSED | Verdict.ERROR:
                return self.error
            case Verdict.UNSTEADY:
                return f"rewards differ between runs: oracle {_list(self.oracle)}; doing nothing {_list(self.nop)}"
            case Verdict.UNSOLVED:
                return f"the task's own solution scores {_list(self.oracle)}, not {SOLVED:g}"
            case Verdict.TRIVIAL:
                return f"doing nothing scores {_list(self.nop)}, not {UNSOLVED:g}"
            case Verdict.FORGEABLE:
                which = ", ".join(self.tricks) or "only all tricks together"
                return (
                    f"forging scores {self.forged:g} without doing the task; what works alone: {which}. Give the "
                    "policy a user of its own ([agent] user), or the verifier a sandbox of its own ([verifier] "
                    'environment_mode = "separate")'
                )


def _list(rewards: tuple[float, ...]) -> str:
    return ", ".join(f"{reward:g}" for reward in rewards)
