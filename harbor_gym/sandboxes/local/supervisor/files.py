"""What the supervisor makes among a sandbox's files, in the sandbox's mount namespace."""

import contextlib
import os

PROGRAM_PATHS = ("/bin", "/usr/bin", "/usr/local/bin")
SHELLS = ("bash", "sh")
NO_SHELL = "there is neither bash nor /bin/sh: a task's image needs a shell"
RESOLVER = "/etc/resolv.conf"


def make_directories(modes: dict[str, int | None]) -> None:
    """Make each directory that is not there, parents too, and give it its mode, if any.

    Raises:
        OSError: Something else has one of the names.
    """
    for path, mode in modes.items():
        os.makedirs(path, exist_ok=True)  # noqa: PTH103  # pathlib would cost 20 ms of imports at every start
        if mode is not None:
            os.chmod(path, mode)  # noqa: PTH101  # as above


def name_server(address: str, owner: int = 0) -> None:
    """Make a name server the sandbox's only one, whatever stood in its place.

    Args:
        address: Its address.
        owner: Whose file it must be: the sandbox's root, as this process knows it.

    Raises:
        OSError: There is no place for it.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(RESOLVER)  # noqa: PTH108  # as above
    handle = os.open(RESOLVER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, f"nameserver {address}\n".encode())
        os.fchown(handle, owner, owner)
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
    """Return the name and the path of the first of some programs that is there; None if none is."""
    for name in names:
        for directory in PROGRAM_PATHS:
            path = f"{directory}/{name}"
            if os.access(path, os.F_OK):
                return name, path
    return None
