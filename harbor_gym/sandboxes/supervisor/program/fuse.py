"""Mounts whose files a program of this machine serves: an image in one file, or an overlay where the kernel makes none.

The supervisor mounts them, so that the sandbox's processes, whose user namespace is its own or below, may see them
(fuse(4), allow_other); the program gets the device alone, and ends with the supervisor.

Source: fuse(4), libfuse's ``/dev/fd/N`` as a mount point.
"""

import os

from kernel.calls import MS_NODEV, mount, only_capabilities
from kernel.steps import Steps

_DEVICE = "/dev/fuse"
_OPTIONS = "rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
_SAID_BYTES = 2000
_ITSELF = "/proc/self/exe"


class Served:
    """One mount.

    Args:
        argv: The program, and its arguments before the mount point.
        place: The mount point.
        first: A descriptor of the static program.
        flags: Further ones of mount(2).
        kept: The program's capabilities; None leaves it all of the supervisor's.

    Raises:
        OSError: The kernel refuses.
    """

    def __init__(
        self, argv: tuple[str, ...], place: str, first: int, *, flags: int = 0, kept: tuple[int, ...] | None = None
    ) -> None:
        self._name, self._place = os.path.basename(argv[0]), place  # noqa: PTH119  # pathlib would cost 20 ms of imports at every start
        self._log = os.memfd_create(self._name)
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        steps = Steps()
        try:
            mount(self._name, place, "fuse", MS_NODEV | flags, f"fd={device},{_OPTIONS}")
            if kept is not None:
                only_capabilities(steps, kept)
            steps.execute(argv[0], [*argv, f"/dev/fd/{device}"], os.environ)
            arguments = ["tied", str(os.getpid()), _ITSELF, *steps.arguments()]
            for handle in (device, *steps.inherited):
                os.set_inheritable(handle, True)
            output = [(os.POSIX_SPAWN_DUP2, self._log, target) for target in (1, 2)]
            program = f"/proc/self/fd/{first}"
            self.pid = os.posix_spawn(program, arguments, {}, file_actions=output, setsid=True)
        finally:
            for handle in (device, *steps.inherited):
                os.close(handle)

    def wait(self) -> None:
        """Wait until the files are there.

        Raises:
            OSError: The program has ended; the message has what it printed.
        """
        try:
            os.stat(self._place)  # noqa: PTH116  # as above
        except OSError as exc:
            raise OSError(f"{self._name} serves no files: {self.said() or exc}") from exc

    def said(self) -> str:
        """Return what the program has printed."""
        return os.pread(self._log, _SAID_BYTES, 0).decode("utf-8", "replace").strip()
