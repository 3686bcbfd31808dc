"""The paths of the policy's sandbox that a verifier in a pristine view sees."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Literal

from harbor_gym.errors import UsageError

type VerifyPaths = Literal["auto", "off"] | tuple[PurePosixPath, ...]
"""``auto`` (the task's own paths), ``off`` (Harbor's grading), or the paths."""

_OWN_OF_A_VIEW = tuple(map(PurePosixPath, ("/tests", "/logs/verifier", "/tmp", "/proc", "/sys", "/dev")))


def check_paths(paths: Iterable[object]) -> tuple[PurePosixPath, ...]:
    """Return the paths that a view carries, without those that lie below another one.

    Args:
        paths: Text or paths.

    Raises:
        ValueError: There is none, or one is not absolute, contains ``..``, or overlaps a path that every view has.
    """
    checked = [_check(path) for path in paths]
    if not checked:
        raise ValueError("verify_paths names no path; leave it out for Harbor's own grading")
    ordered = sorted(set(checked), key=lambda path: path.parts)
    return tuple(path for path in ordered if not any(path != other and path.is_relative_to(other) for other in ordered))


def parse_verify_paths(text: str) -> VerifyPaths:
    """Read a command line's ``auto``, ``off``, or paths with commas between.

    Raises:
        UsageError: A path is invalid.
    """
    if text == "auto" or text == "off":
        return text
    try:
        return check_paths(text.split(","))
    except ValueError as exc:
        raise UsageError(f"--verify-paths is auto, off, or paths with commas between: {exc}") from None


def _check(path: object) -> PurePosixPath:
    if not isinstance(path, str | PurePosixPath) or not str(path):
        raise ValueError(f"verify_paths has {path!r}, which is not a path")
    given = PurePosixPath(path)
    if not given.is_absolute() or ".." in given.parts:
        raise ValueError(f"verify_paths: {str(path)!r} is not an absolute path without '..'")
    given = PurePosixPath("/", *given.parts[1:])  # POSIX leaves the meaning of two slashes at the start open
    if given == PurePosixPath("/"):
        raise ValueError("verify_paths: '/' is everything, and no view of it is pristine: name the paths that count")
    for own in _OWN_OF_A_VIEW:
        if given.is_relative_to(own) or own.is_relative_to(given):
            raise ValueError(f"verify_paths: {str(path)!r} can't be carried, a pristine view has its own {own}")
    return given
