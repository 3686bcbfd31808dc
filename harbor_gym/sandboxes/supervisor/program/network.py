"""A sandbox's network: slirp4netns, a network stack in a process of its own that has no rights on the machine.

It starts while the sandbox is still being made.

Source: slirp4netns(1).
"""

import contextlib
import os
import select
import signal
from typing import NoReturn

from kernel.calls import MS_PRIVATE, MS_REC, mount
from messages import SupervisorConfig
from outside import Outsider

_DEVICE, _MTU = "tap0", 65520
_START_TIMEOUT_SEC = 8.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class UserNetwork:
    """One sandbox's slirp4netns. Made in the supervisor before it enters the sandbox's namespaces.

    Args:
        config: The supervisor's configuration.
        first: A descriptor of the static program.
    """

    def __init__(self, config: SupervisorConfig, first: int) -> None:
        self._program = config.slirp4netns or "slirp4netns"
        self._first = first
        self._may_begin = config.may_have_network
        self._outsider = Outsider(self._become) if config.may_have_network and config.may_switch_network else None
        self._only = 0
        """The process id of a network that never changes."""
        self._ready = self._exit = self._log = -1
        self.is_open = False

    @property
    def pid(self) -> int:
        """The process that the network ends with; 0 if there is none."""
        return self._only if self._outsider is None else self._outsider.pid

    def begin(self, namespace: int) -> None:
        """Begin to connect a network namespace; :meth:`wait` returns when it has a network.

        A network that never changes is to begin after the supervisor has a mount namespace of its own, and before it
        enters the sandbox's namespaces.

        Raises:
            OSError: This sandbox was not to have one, or no other.
        """
        if not self._may_begin:
            raise OSError("the sandbox was made without a network connection that comes later")
        self._may_begin = self._outsider is not None
        self._ready, ready = os.pipe()
        leave, self._exit = os.pipe()
        self._log = os.memfd_create("slirp4netns")
        try:
            if self._outsider is not None:
                self._outsider.start([ready, leave, self._log, namespace])
            else:
                self._spawn([ready, leave, self._log, namespace])
        finally:
            os.close(ready)
            os.close(leave)
        self.is_open = True

    def _spawn(self, handles: list[int]) -> None:
        """Start it by the static program: a forked Python would take ten times as long to become it."""
        argv = self._argv(handles)
        tied = ["tied", str(os.getpid()), argv[0], *argv]
        output = [(os.POSIX_SPAWN_DUP2, handles[2], target) for target in (1, 2)]
        self._only = os.posix_spawn(f"/proc/self/fd/{self._first}", tied, _ENVIRONMENT, file_actions=output)
        os.set_inheritable(handles[-1], False)

    def wait(self) -> None:
        """Wait for the network that was begun.

        Raises:
            OSError: It does not come up.
        """
        # It answers in about ten milliseconds; meanwhile the supervisor serves no request.
        has_answered, _, _ = select.select([self._ready], [], [], _START_TIMEOUT_SEC)
        is_ready = has_answered and os.read(self._ready, 1)
        os.close(self._ready)
        output = os.pread(self._log, 2000, 0).decode("utf-8", "replace").strip()
        os.close(self._log)
        if not is_ready:
            self.close()
            raise OSError(f"slirp4netns gives no network: {output or 'it ended without a reason'}")

    def _argv(self, handles: list[int]) -> list[str]:
        """Return its arguments, and let it inherit its descriptors."""
        ready, leave, _, namespace = handles
        for handle in (ready, leave, namespace):
            os.set_inheritable(handle, True)
        argv = [self._program, "--configure", f"--mtu={_MTU}", "--disable-host-loopback"]
        argv += ["--enable-sandbox", "--enable-seccomp", f"--ready-fd={ready}", f"--exit-fd={leave}"]
        return [*argv, "--netns-type=path", f"/proc/self/fd/{namespace}", _DEVICE]

    def _become(self, handles: list[int]) -> NoReturn:
        try:
            # It detaches its old root; mounts below that are still shared with this machine (Docker's), and would be
            # detached there, too.
            os.unshare(os.CLONE_NEWNS)
            mount("none", "/", None, MS_REC | MS_PRIVATE)
            os.chdir("/")
            for target in (1, 2):
                os.dup2(handles[2], target)
            argv = self._argv(handles)
            os.execve(argv[0], argv, _ENVIRONMENT)
        except BaseException as exc:  # a forked child must never return into its parent's code
            os.write(2, str(exc).encode("utf-8", "replace"))
        finally:
            os._exit(126)

    def close(self) -> None:
        """End the network with every connection. Idempotent."""
        if not self.is_open:
            return
        # In this order: a program that ends with its pipe would also end the process that starts the next one.
        if self._outsider is not None:
            self._outsider.end()
        else:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it ended before
                os.kill(self._only, signal.SIGKILL)
                os.waitpid(self._only, 0)
            self._only = 0
        os.close(self._exit)
        self.is_open = False

    def leave(self) -> None:
        """Kill the network's processes for good, without waiting: the kernel takes 20 ms to remove the device."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
