"""The files of a failed trial that explain its failure, read before its folder is removed."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.files import open_regular

_MAX_BYTES = 4000
_MAX_FILES = 50
_SERVICES = "services"
"""The folder with a file ``NAME.log`` for each service."""
_FILES = {
    "exception": ("exception.txt",),
    "verifier_output": ("verifier/test-stdout.txt", "steps/*/verifier/test-stdout.txt"),
    "trial_log": ("trial.log",),
}
"""Name of a diagnostic → its paths in a trial's folder."""


def read_diagnostics(trial_dir: Path) -> dict[str, str]:
    """Return the ends of a trial's records by name: ``exception``, ``verifier_output``, ``trial_log``, if they exist.

    Args:
        trial_dir: The trial's folder, which may be half written.
    """
    found: dict[str, str] = {}
    for name, patterns in _FILES.items():
        files = [file for pattern in patterns for file in trial_dir.glob(pattern) if _is_plain(file)]
        if files and (text := _tail(max(files, key=lambda file: file.lstat().st_mtime), trial_dir)):
            found[name] = text
    return found


@dataclass(frozen=True)
class VerifierReport:
    """A verifier's output and files, without its rewards."""

    output: str
    """The end of its output."""

    files: Mapping[str, int]
    """Path in its folder → size in bytes, for the first 50 files by path."""


def read_verifier(trial_dir: Path, step: str | None) -> VerifierReport:
    """Return the output and files of the verifier of a trial, or of one of its steps.

    Args:
        trial_dir: The trial's folder.
        step: The step's name; None where the task has none.
    """
    folder = trial_dir / "verifier" if step is None else trial_dir / "steps" / step / "verifier"
    output = folder / "test-stdout.txt"
    sizes: dict[str, int] = {}
    for place, _, names in os.walk(folder):
        for path in (f"{place}/{name}" for name in names):
            try:
                status = os.lstat(path)
            except OSError:  # a path that is longer than this machine's may be
                continue
            if stat.S_ISREG(status.st_mode):
                sizes[path.removeprefix(f"{folder}/")] = status.st_size
    return VerifierReport(_tail(output, trial_dir), dict(sorted(sizes.items())[:_MAX_FILES]))


def read_services(trial_dir: Path) -> dict[str, str]:
    """Return the end of what each service of a trial's Compose file has printed, by name, for the first 50 services.

    Args:
        trial_dir: The trial's folder.
    """
    files = sorted(trial_dir.glob(f"{_SERVICES}/*.log"))[:_MAX_FILES]
    return {file.stem: _tail(file, trial_dir) for file in files}


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()  # a sandbox may have made it: no link is followed


def _tail(file: Path, trial_dir: Path) -> str:
    """Return the end of a trial's file; empty if it is missing or no regular file."""
    try:
        stream = open_regular(file, trial_dir)
    except OSError:
        return ""
    with stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _MAX_BYTES))
        text = stream.read(_MAX_BYTES).decode("utf-8", "replace")
    return (f"[… {size - _MAX_BYTES} bytes before]\n{text}" if size > _MAX_BYTES else text).strip()
