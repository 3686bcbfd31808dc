"""The result of a check."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

SOLVED = 1.0
"""The reward that the oracle must get."""

UNSOLVED = 0.0
"""The reward that doing nothing and reward hacking must get."""


class Verdict(StrEnum):
    """The verdict on a task. All but ``OK`` come with a reason."""

    OK = "ok"
    """Solvable, not solved at the start, graded alike each time, and safe from the tricks that were tried."""

    REFUSED = "refused"
    """The sandbox does not run such tasks. The task may pass on another sandbox."""

    ERROR = "error"
    """Something could not be graded, or the task is malformed. An error is never a reward."""

    UNSOLVED = "unsolved"
    """The task's own solution does not score 1.0."""

    TRIVIAL = "trivial"
    """Doing nothing scores."""

    FLAKY = "flaky"
    """The same agent scored differently in another run."""

    FORGEABLE = "forgeable"
    """Planting files and leaving a process behind scores, without doing the task."""

    UNPROVEN = "unproven"
    """The task has no solution to show that it can be solved; all else is as for ``OK``."""


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """A trial's time by phase, in seconds. A multi-step task's agent and verifier times are sums."""

    start: float
    """Building the image if necessary, starting the sandbox, and its healthcheck."""

    agent: float
    """The agent's phase."""

    verify: float
    """The verifier, including a sandbox of its own."""

    stop: float
    """Stopping the sandbox, and Harbor's other work at the end."""


@dataclass(frozen=True, slots=True)
class PristineCheck:
    """The result of a task whose verifier has a pristine view."""

    paths: tuple[str, ...]
    """The paths carried from the policy's sandbox into the view."""

    is_asked: bool
    """Whether the task declares these paths or the plan gives them, so that a policy is graded so. Otherwise they are
    proposed, derived from the files that the solution wrote."""

    oracle: float | None = None
    """Reward of the task's own solution."""

    stopped_processes: int = 0
    """Processes that the solution left running, and that were stopped before grading."""

    nop: float | None = None
    """Reward for doing nothing."""

    forged: float | None = None
    """Reward for reward hacking; None when it was not tried."""

    tricks: tuple[str, ...] = ()
    """Tricks that score on their own, where reward hacking did."""

    remains: tuple[str, ...] = ()
    """Kinds of files that a policy could still plant in these paths for this task's verifier to run."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on this view; ``OK`` stands for ``UNPROVEN`` too."""
        if self.oracle not in (None, SOLVED):
            return Verdict.UNSOLVED
        if self.nop not in (None, UNSOLVED):
            return Verdict.TRIVIAL
        return Verdict.OK if self.forged in (None, UNSOLVED) else Verdict.FORGEABLE

    @property
    def declaration(self) -> str:
        """The line for ``[metadata]`` in task.toml."""
        return f"verify_paths = {json.dumps(list(self.paths))}"


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """The verdict on one task, with the results behind it."""

    task: str
    """Name of the task's directory; the second of several with one name ends in ``~2``, and so on."""

    path: Path
    """The task's directory."""

    source: str | None = None
    """The source of the task as the user wrote it; None where its directory was given."""

    commit: str | None = None
    """The git commit it was taken from."""

    has_solution: bool = True
    """Whether the task has a solution."""

    oracle: tuple[float, ...] = ()
    """Rewards of the task's own solution in an episode like a policy's, one for each graded run."""

    plain: float | None = None
    """Reward of the task's own solution in a plain Harbor trial; None when it was not graded."""

    output: str = ""
    """The last lines of the verifier's output in the solution's last run without a full reward, in an episode if there
    was one."""

    nop_output: str = ""
    """The last lines of the verifier's output in the last run of doing nothing that was rewarded."""

    solved_output: str = ""
    """The last lines of the verifier's output in the solution's last run with a full reward."""

    services: str | None = None
    """A sentence on how long the last start waited for services of the image's ENTRYPOINT; None without any."""

    nop: tuple[float, ...] = ()
    """Rewards for doing nothing, one for each graded run."""

    forged: float | None = None
    """Reward for reward hacking; None when it was not tried or could not be graded."""

    tricks: tuple[str, ...] = ()
    """Tricks that score on their own, where reward hacking did."""

    voided: tuple[str, ...] = ()
    """Tricks that leave no verdict, with or without a pristine view, where reward hacking was tried trick by trick."""

    lint: tuple[str, ...] = ()
    """Findings of ``harbor lint`` in the task's files, if the installed Harbor has it. The verdict ignores them."""

    oddities: tuple[str, ...] = ()
    """Probable mistakes of the author: tables that Harbor does not read, scripts with CRLF line ends."""

    pristine: PristineCheck | None = None
    """The result in a pristine view; None where the sandbox has none, or no paths are known for one."""

    phases: PhaseSeconds | None = None
    """Time by phase of the oracle's last episode; without a solution that of doing nothing."""

    seconds: float = 0.0
    """Wall-clock time of the whole check, in which other tasks may have been checked, too."""

    error: str | None = None
    """Why a trial could not be graded, on one line."""

    refused: bool = False
    """Whether that error is the sandbox's refusal."""

    is_lost: bool = False
    """Whether that error is the sandbox's or the terminal's, which another run may not have."""

    @property
    def verdict(self) -> Verdict:
        """The verdict; of several that apply the one that puts the others in doubt.

        For a task graded in a pristine view, the view's verdict counts: reward hacking under Harbor's grading does not.
        """
        harbors = self.harbors_verdict
        if self.pristine is None or not self.pristine.is_asked or harbors not in SOUND:
            return harbors
        if self.pristine.verdict is not Verdict.OK:
            return self.pristine.verdict
        return Verdict.OK if self.has_solution else Verdict.UNPROVEN

    @property
    def harbors_verdict(self) -> Verdict:
        """The verdict on Harbor's grading, in which the verifier sees all of the policy's sandbox."""
        if self.error is not None:
            return Verdict.REFUSED if self.refused else Verdict.ERROR
        if len(set(self.oracle)) > 1 or len(set(self.nop)) > 1:
            return Verdict.FLAKY
        if self.has_solution and set(self.oracle) != {SOLVED}:
            return Verdict.UNSOLVED
        if self.plain not in (None, SOLVED):
            return Verdict.FLAKY
        if set(self.nop) != {UNSOLVED}:
            return Verdict.TRIVIAL
        if self.forged not in (None, UNSOLVED):
            return Verdict.FORGEABLE
        return Verdict.OK if self.has_solution else Verdict.UNPROVEN

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``OK``."""
        return self.verdict is Verdict.OK

    @property
    def shown_output(self) -> str:
        """The verifier's output in the run that the reason is about; empty where it printed nothing."""
        is_of_nop = self.verdict is Verdict.TRIVIAL or (
            self.verdict is Verdict.FLAKY and len(set(self.nop)) > 1 and len(set(self.oracle)) < 2
        )
        return self.nop_output if is_of_nop else self.output

    @property
    def reason(self) -> str | None:
        """The reason for a verdict other than ``OK``, on one line; None for ``OK``."""
        if self.pristine is not None and self.verdict is not self.harbors_verdict:
            return self._why_not_pristine(self.pristine)
        match self.verdict:
            case Verdict.OK:
                return None
            case Verdict.REFUSED | Verdict.ERROR:
                return self.error
            case Verdict.FLAKY:
                plain = "" if self.plain is None else f", as a plain trial {self.plain:g}"
                which = [*_odd_runs("oracle", self.oracle, SOLVED), *_odd_runs("doing nothing", self.nop, UNSOLVED)]
                if self.plain not in (None, SOLVED):
                    which.append("the plain trial")
                found = f"oracle {_list(self.oracle)}{plain}; doing nothing {_list(self.nop)}"
                return f"rewards differ between runs: {found}. Not as it should be: {', '.join(which)}"
            case Verdict.UNSOLVED:
                return self._why_unsolved
            case Verdict.UNPROVEN:
                return _NO_SOLUTION
            case Verdict.TRIVIAL:
                return f"doing nothing scores {_list(self.nop)}, not {UNSOLVED:g}"
            case Verdict.FORGEABLE if self.pristine is not None and self.pristine.is_asked:
                return self._why_not_pristine(self.pristine)
            case Verdict.FORGEABLE:
                which = _names(self.tricks)
                return (
                    f"reward hacking scores {self.forged:g} without doing the task; what works alone: {which}. Give "
                    "the policy a user of its own ([agent] user), or the verifier a sandbox of its own ([verifier] "
                    'environment_mode = "separate"), or a pristine view ([metadata] verify_paths)'
                )

    def _why_not_pristine(self, pristine: PristineCheck) -> str | None:
        view = f"in the pristine view of {', '.join(pristine.paths)}"
        match self.verdict:
            case Verdict.UNSOLVED:
                why = "a path is missing"
                if pristine.stopped_processes:
                    why += (
                        f", or one of the {pristine.stopped_processes} processes that it left and that were stopped "
                        "before grading: [metadata] keep_agent_processes = true"
                    )
                return f"{view} the task's own solution scores {pristine.oracle:g}, not {SOLVED:g}: {why}"
            case Verdict.TRIVIAL:
                return f"{view} doing nothing scores {pristine.nop:g}, not {UNSOLVED:g}"
            case Verdict.FORGEABLE:
                return f"{view} reward hacking scores {pristine.forged:g}; what works alone: {_names(pristine.tricks)}"
            case Verdict.UNPROVEN:
                return _NO_SOLUTION
            case _:
                return None

    @property
    def _why_unsolved(self) -> str:
        if self.plain is None or self.plain in self.oracle:
            return f"the task's own solution scores {_list(self.oracle)}, not {SOLVED:g}"
        differ = f"the plain trial scores {self.plain:g}, the episode {_list(self.oracle)}"
        return (
            f"{differ}: before grading an episode empties /logs/verifier and /tests, and with [metadata] "
            "keep_agent_processes = false it stops what the solution started"
        )


SOUND = (Verdict.OK, Verdict.UNPROVEN, Verdict.FORGEABLE)
"""Verdicts of a task that grades alike each time, pays the solution, and does not pay for nothing."""

_NO_SOLUTION = "the task has no solution/, so nothing shows that it can be solved"


def _names(tricks: tuple[str, ...]) -> str:
    return ", ".join(tricks) or "only all tricks together"


def _odd_runs(agent: str, rewards: tuple[float, ...], expected: float) -> list[str]:
    """Return the runs without the expected reward, if an agent's rewards differ."""
    if len(set(rewards)) < 2:
        return []
    return [f"{agent}, run {run}" for run, reward in enumerate(rewards, start=1) if reward != expected]


def _list(rewards: tuple[float, ...]) -> str:
    return ", ".join(f"{reward:g}" for reward in rewards)
