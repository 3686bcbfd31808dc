"""The files that the supervisor makes in a sandbox, in the sandbox's mount namespace."""

import contextlib
import errno
import os
from collections.abc import Mapping

from grading import removal
from kernel.steps import ANY, AT_FDCWD, KEPT, Steps

PROGRAM_PATHS = ("/bin", "/usr/bin", "/usr/local/bin")
SHELLS = ("bash", "sh")
NO_SHELL = "there is neither bash nor /bin/sh: a task's image needs a shell"
ETC = "/etc"
RESOLVER = f"{ETC}/resolv.conf"


def remake_directories(modes: dict[str, int | None]) -> None:
    """Make directories in place of other entries with their names, with their parents, and set their modes, if any.

    Args:
        modes: Path → mode; None keeps the mode of an existing one.

    Raises:
        OSError: One can't be made.
    """
    for path, mode in modes.items():
        if problem := removal.make_again(path, [0, 0, 0o755], 0):
            raise OSError(problem)
        os.makedirs(path, exist_ok=True)  # noqa: PTH103  # pathlib would cost 20 ms of imports at every start
        if mode is not None:
            os.chmod(path, mode)  # noqa: PTH101  # as above


def make_directories_by(steps: Steps, *modes: tuple[str, int | None]) -> None:
    """Make each missing directory, with its parents, and set its mode, if any.

    Args:
        steps: Where to add the calls.
        modes: Path and mode; None keeps the mode of an existing one. A file or a link to nowhere that the image has at
            a path with a mode is replaced, and at another one it is a failure.
    """
    for path, mode in modes:
        make_directory_by(steps, path, replaces=mode is not None)
        steps.call(
            "openat", AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, keeps=True, what=f"directory {path}"
        )
        steps.call("close", KEPT)
        if mode is not None:
            steps.call("fchmodat", AT_FDCWD, path, mode, what=f"directory {path}")


def make_directory_by(steps: Steps, path: str, *, replaces: bool = False) -> None:
    """Make what is missing of a path; ``replaces`` is whether in place of what is no directory."""
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        if names[depth - 1]:
            above = "/".join(names[:depth])
            what, replacing = f"directory {above}", 3 if replaces else 0
            steps.call(
                "mkdirat", AT_FDCWD, above, 0o777, tolerates=errno.EEXIST, skips_after_success=replacing, what=what
            )
            if replaces:
                steps.call("faccessat", AT_FDCWD, f"{above}/.", os.F_OK, tolerates=ANY, skips_after_success=2)
                steps.call("unlinkat", AT_FDCWD, above, 0, what=what)
                steps.call("mkdirat", AT_FDCWD, above, 0o777, what=what)


def write_etc(contents: Mapping[str, str], owner: int = 0) -> None:
    """Write files of the sandbox's /etc, replacing entries with their names.

    Args:
        contents: Name → content.
        owner: The files' owner: the id of the sandbox's root in this process's user namespace.

    Raises:
        OSError: One can't be written.
    """
    if not contents:
        return
    if problem := removal.make_again(ETC, [owner, owner, 0o755], owner):
        raise OSError(problem)
    place = os.open(ETC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, content in contents.items():
            write_file(place, name, content.encode(), owner=owner)
    finally:
        os.close(place)


def write_file(place: int, name: str, content: bytes, *, owner: int | None = None, mode: int = 0o644) -> None:
    """Write a file in a directory, replacing an entry with its name, even a directory with its contents.

    Args:
        place: A descriptor of the directory.
        name: The file's name.
        content: The whole content.
        owner: Its owner; None is this process's user.
        mode: Its mode.

    Raises:
        OSError: It can't be written.
    """
    with contextlib.suppress(FileNotFoundError):
        removal.remove_entry(name, place)
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=place)
    try:
        os.write(handle, content)
        if owner is not None:
            os.fchown(handle, owner, owner)
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def require_shell_by(steps: Steps) -> None:
    """Check that the image has a shell."""
    paths = [path for _, path in _paths(SHELLS)]
    for number, path in enumerate(paths):
        steps.call("faccessat", AT_FDCWD, path, os.F_OK, tolerates=ANY, skips_after_success=len(paths) - number)
    steps.refuse(NO_SHELL)


def _paths(names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, f"{directory}/{name}") for name in names for directory in PROGRAM_PATHS]


def find_program(names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the name and the path of the first program that exists; None if none does."""
    return next(((name, path) for name, path in _paths(names) if os.access(path, os.F_OK)), None)
