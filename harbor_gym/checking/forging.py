"""Try to be rewarded without doing the task: plant files, leave a process behind, and stop.

This runs as an episode of ours, so that what protects the verdict of an episode is part of what is tried. Under
``harbor run`` alone, some of these tricks work on tasks that are safe here.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.errors import SandboxLostError

if TYPE_CHECKING:
    from harbor_gym.checking.play import Work
    from harbor_gym.episode import AgentPhase, Episode

_SCRIPTS = Path(__file__).parent / "forgeries"
_PLANTING_TIMEOUT_SEC = 60
_EXPECTED_END = "planted"


def trick_names() -> list[str]:
    """Return the names of all tricks."""
    return sorted(path.stem for path in _SCRIPTS.glob("*.sh") if path.stem != "common")


def forger(tricks: Sequence[str], keys: Collection[str]) -> Work:
    """Return the work of an agent that plays tricks in every phase, as the policy's user, and does nothing else.

    Args:
        tricks: Which ones, of :func:`trick_names`.
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
            said = (result.stderr or result.stdout or "").strip()
            raise SandboxLostError(f"the forger's commands did not run: {said}")

    return plant


@functools.cache
def _read_script(name: str) -> str:
    return (_SCRIPTS / f"{name}.sh").read_text()
