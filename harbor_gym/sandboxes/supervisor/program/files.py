"""The files that the supervisor makes in a sandbox, in the sandbox's mount namespace."""

import contextlib
import os

from grading import removal

PROGRAM_PATHS = ("/bin", "/usr/bin", "/usr/local/bin")
SHELLS = ("bash", "sh")
NO_SHELL = "there is neither bash nor /bin/sh: a task's image needs a shell"
RESOLVER = "/etc/resolv.conf"


def make_directories(modes: dict[str, int | None], *, replacing: bool = False) -> None:
    """Make each missing directory, with its parents, and set its mode, if any.

    Args:
        modes: Path → mode; None keeps the mode of an existing one.
        replacing: Remove other entries with these names.

    Raises:
        OSError: Another entry has one of the names, or a directory can't be made.
    """
    for path, mode in modes.items():
        if replacing and (problem := removal.make_again(path, [0, 0, 0o755], 0)):
            raise OSError(problem)
        os.makedirs(path, exist_ok=True)  # noqa: PTH103  # pathlib would cost 20 ms of imports at every start
        if mode is not None:
            os.chmod(path, mode)  # noqa: PTH101  # as above


def name_server(address: str, owner: int = 0) -> None:
    """Make a name server the sandbox's only one.

    Args:
        address: Its address.
        owner: The file's owner: the id of the sandbox's root in this process's user namespace.

    Raises:
        OSError: The file can't be written.
    """
    directory, name = os.path.split(RESOLVER)
    if problem := removal.make_again(directory, [owner, owner, 0o755], owner):
        raise OSError(problem)
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_file(place, name, f"nameserver {address}\n".encode(), owner=owner)
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


def require_shell() -> None:
    """Check that the image has a shell.

    Raises:
        FileNotFoundError: It has none.
    """
    if find_program(SHELLS) is None:
        raise FileNotFoundError(NO_SHELL)


def find_program(names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the name and the path of the first program that exists; None if none does."""
    for name in names:
        for directory in PROGRAM_PATHS:
            path = f"{directory}/{name}"
            if os.access(path, os.F_OK):
                return name, path
    return None
