"""Try to get a reward without doing the task: plant files, leave a process behind, and stop.

It runs as an episode of this package, so the protections of an episode's grading are tested, too. Under ``harbor run``
alone, some of these tricks work on tasks that are safe here.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.checking.play import Played, Work
from harbor_gym.errors import HarborGymError, SandboxLostError, VerifierError

if TYPE_CHECKING:
    from harbor_gym.episode import AgentPhase, Episode

_SCRIPTS = Path(__file__).parent / "exploits"
_PLANTING_TIMEOUT_SEC = 60
_EXPECTED_END = "planted"
SABOTAGE = "sabotage"
"""The trick that tries to leave no verdict; it would undo the others, and is played alone."""


def trick_names() -> list[str]:
    """Return the names of all tricks that try to earn a reward."""
    return sorted(path.stem for path in _SCRIPTS.glob("*.sh") if path.stem not in ("common", SABOTAGE))


@dataclass(frozen=True, slots=True)
class ExploitResult:
    """The rewards that tricks earned."""

    reward: float
    """The reward for all tricks together; that of the best one if all together left no verdict."""

    tricks: tuple[str, ...]
    """Tricks that earn as much alone."""

    voided: tuple[str, ...]
    """Tricks that leave no verdict alone, so that an episode would be discarded."""


async def run_exploit(
    play: Callable[[Work], Awaitable[Played]],
    keys: Collection[str],
    honest: Collection[float],
    *,
    together: Callable[[Work], Awaitable[Played]] | None = None,
) -> ExploitResult:
    """Play all tricks together; if they earn a reward or leave no verdict, play each alone to find out which do.

    Sabotage is always played alone.

    Args:
        play: Plays an episode.
        keys: Names of the rewards to forge.
        honest: Rewards for doing nothing, after which the tricks are not played alone.
        together: Plays the episode of all tricks. They may delay each other past the verifier's time limit, which must
            then count as no verdict and not as 0. None is ``play``.

    Raises:
        SandboxError, VerifierError: No trick left a verdict.
    """
    earned = await _forge(play, keys, honest, together or play)
    sabotaged = await _earn(play, exploit_agent([SABOTAGE], keys))
    return earned if isinstance(sabotaged, float) else replace(earned, voided=(*earned.voided, SABOTAGE))


async def _forge(
    play: Callable[[Work], Awaitable[Played]],
    keys: Collection[str],
    honest: Collection[float],
    play_together: Callable[[Work], Awaitable[Played]],
) -> ExploitResult:
    together = await _earn(play_together, exploit_agent(trick_names(), keys))
    if isinstance(together, float) and together in honest:
        return ExploitResult(together, (), ())
    alone = {trick: await _earn(play, exploit_agent([trick], keys)) for trick in trick_names()}
    graded = {trick: earned for trick, earned in alone.items() if isinstance(earned, float)}
    if isinstance(together, HarborGymError):
        if not graded:
            raise together
        together = max(graded.values())
    paying = tuple(trick for trick, earned in graded.items() if earned == together and earned not in honest)
    return ExploitResult(together, paying, tuple(trick for trick in alone if trick not in graded))


async def _earn(play: Callable[[Work], Awaitable[Played]], work: Work) -> float | HarborGymError:
    try:
        return (await play(work)).reward
    except (SandboxLostError, VerifierError) as exc:
        return exc


def exploit_agent(tricks: Sequence[str], keys: Collection[str]) -> Work:
    """Return the work of an agent that only plays tricks, in every phase and as the policy's user.

    Args:
        tricks: Names from :func:`trick_names`, or :data:`SABOTAGE`.
        keys: Names of the rewards to forge, as the verifier writes them.
    """
    verdict = json.dumps(dict.fromkeys(sorted(keys) or ["reward"], 1))
    script = "\n".join([f"verdict={shlex.quote(verdict)}", *map(_read_script, ["common", *tricks])])
    command = f"bash -c {shlex.quote(script)} </dev/null; echo {_EXPECTED_END}"

    async def plant(_episode: Episode, phase: AgentPhase) -> None:
        from harbor_gym.episode.episode import run_in_phase

        planting = phase.environment.exec(command, user=phase.user, timeout_sec=_PLANTING_TIMEOUT_SEC)
        result = await run_in_phase(phase, planting)
        if _EXPECTED_END not in (result.stdout or ""):
            output = (result.stderr or result.stdout or "").strip()
            raise SandboxLostError(f"the forger's commands did not run: {output}")

    return plant


@functools.cache
def _read_script(name: str) -> str:
    return (_SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
