"""Where an evaluation's figures come from: tasks, versions, time and tokens."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harbor_gym._runtime.processes import ask
from harbor_gym._runtime.shipped import folder_digest
from harbor_gym.evaluation.episodes import EpisodeResult

_GIT_TIMEOUT_SEC = 10.0


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what an episode is, and Python's."""
    packages = {name: importlib.metadata.version(name) for name in ("harbor-gym", "harbor")}
    return {**packages, "python": platform.python_version()}


def digests(task_dirs: Sequence[Path]) -> dict[str, str]:
    """Return for each task, by its directory's name, the digest of all of its files."""
    return {path.resolve().name: folder_digest(path) for path in task_dirs}


def provenance(
    task_dirs: Sequence[Path], task_digests: Mapping[str, str], results: Sequence[EpisodeResult], started: datetime
) -> dict[str, Any]:
    """Return how an evaluation's episodes were made, as a JSON object.

    ``tasks`` has the ``digest`` of each task's files, and the ``git`` commit of the checkout that they lie in, with a
    final ``+`` where they differ from it. ``started`` and ``ended`` are those of the last command, in UTC; ``seconds``
    and ``sampled_tokens`` are sums over all episodes, those of an earlier command too.
    """
    return {
        "tasks": {
            path.resolve().name: {"digest": task_digests[path.resolve().name], "git": _commit(path)}
            for path in task_dirs
        },
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(sum(result.seconds for result in results), 1),
        "sampled_tokens": sum(result.sampled_tokens for result in results),
        "episodes": len(results),
    }


def _commit(path: Path) -> str | None:
    """Return the commit of the git checkout that a directory lies in; None if it is in none."""
    try:
        commit = ask("git", "-C", str(path), "rev-parse", "HEAD", timeout_sec=_GIT_TIMEOUT_SEC)
        changes = ask("git", "-C", str(path), "status", "--porcelain", "--", ".", timeout_sec=_GIT_TIMEOUT_SEC)
    except (OSError, subprocess.SubprocessError):
        return None
    if commit.returncode or changes.returncode:
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
