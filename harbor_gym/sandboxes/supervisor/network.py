"""A sandbox's way out: slirp4netns, a network stack in a process of its own that has no rights on the machine.

It starts when the sandbox first says something to the world. Many never do.

Source: slirp4netns(1).
"""

import contextlib
import os
import select
import signal
from typing import Any, NoReturn

import routes
from kernel import PR_SET_PDEATHSIG, prctl
from outside import Outsider
from stand_in import StandIn, send_again

_STAND_IN, _DEVICE = "tap0", "tap1"
_ADDRESS, _MASK, _MTU = "10.0.2.100", "255.255.255.0", 65520
_START_TIMEOUT_SEC = 8.0
_GATEWAY = bytes.fromhex("52550a000202")
"""Its link-layer address: 52:55 and 10.0.2.2."""


class UserNetwork:
    """One sandbox's slirp4netns. Made in the supervisor before it enters the sandbox's namespaces."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._program: str | None = config["slirp4netns"]
        self._closed: list[str] = config["closed_networks"]
        self._outsider = Outsider(self._become) if config["is_ordinary"] and self._program else None
        names = ("pid", "net") if self._outsider is None else ()
        self._home = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        self.pid = 0
        """The process at whose end the network is gone; 0 while there is none."""
        self._exit = -1
        self._stand_in: StandIn | None = None

    @property
    def unused(self) -> int:
        """A descriptor that is ready to be read when :meth:`start` is due; -1 where there is no network to start."""
        return -1 if self._stand_in is None else self._stand_in.handle

    def open(self) -> None:
        """Give the sandbox a network. Nothing happens where it has one. In its network namespace.

        Raises:
            OSError: The kernel refuses.
        """
        if self.pid or self._stand_in is not None:
            return
        routes.close_networks(self._closed)
        self._stand_in = StandIn(_STAND_IN, _ADDRESS, _MASK, _MTU)

    def start(self, init: int, init_pidfd: int) -> None:
        """Have the network carry what the sandbox sends, if it has sent anything; return when it does.

        Raises:
            OSError: It does not come up.
        """
        assert self._stand_in is not None
        packets = self._stand_in.take()
        if not packets:
            return
        self._run(init, init_pidfd)
        self._stand_in.quiesce()
        packets += self._stand_in.take()
        send_again(packets, _DEVICE, _ADDRESS, _GATEWAY)
        self._remove_stand_in()

    def leave_to_supervisor(self) -> None:
        """Give up a forked process's part in it, which would keep the device alive."""
        if self._stand_in is not None:
            self._stand_in.close()

    def _remove_stand_in(self) -> None:
        if self._stand_in is not None:
            self._stand_in.close()
            self._stand_in = None

    def _run(self, init: int, init_pidfd: int) -> None:
        ready_read, ready_write = os.pipe()
        exit_read, self._exit = os.pipe()
        log = os.memfd_create("slirp4netns")
        handles = [ready_write, exit_read, log]
        try:
            if self._outsider is not None:
                self._outsider.start(init, handles)
                self.pid = self._outsider.pid
            else:
                self.pid = self._fork(init, init_pidfd, handles)
        finally:
            os.close(ready_write)
            os.close(exit_read)
        # It answers in some ten milliseconds; meanwhile the supervisor serves nobody.
        has_answered, _, _ = select.select([ready_read], [], [], _START_TIMEOUT_SEC)
        is_ready = has_answered and os.read(ready_read, 1)
        os.close(ready_read)
        said = os.pread(log, 2000, 0).decode("utf-8", "replace").strip()
        os.close(log)
        if not is_ready:
            self.close()
            raise OSError(f"slirp4netns gives no network: {said or 'not a word from it'}")

    def _fork(self, init: int, init_pidfd: int, handles: list[int]) -> int:
        """Start it from the caller's namespaces: inside it could be seen, and would have the sandbox's network."""
        os.setns(self._home[0], os.CLONE_NEWPID)
        os.setns(self._home[1], os.CLONE_NEWNET)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(init, handles)
        finally:
            os.setns(init_pidfd, os.CLONE_NEWPID | os.CLONE_NEWNET)
        return pid

    def _become(self, init: int, handles: list[int]) -> NoReturn:
        ready, leave, log = handles
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir("/")
            os.dup2(log, 1)
            os.dup2(log, 2)
            for handle in (ready, leave):
                os.set_inheritable(handle, True)
            argv = [self._program or "slirp4netns", "--configure", f"--mtu={_MTU}", "--disable-host-loopback"]
            argv += ["--enable-sandbox", "--enable-seccomp", f"--ready-fd={ready}", f"--exit-fd={leave}"]
            os.execve(argv[0], [*argv, str(init), _DEVICE], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        except BaseException as exc:  # a forked child must never return into its parent's code
            os.write(2, str(exc).encode("utf-8", "replace"))
        finally:
            os._exit(126)

    def close(self) -> None:
        """End the network with every connection. Idempotent."""
        self._remove_stand_in()
        if not self.pid:
            return
        os.close(self._exit)
        if self._outsider is not None:
            self._outsider.end()
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = 0

    def leave(self) -> None:
        """End the network for good. Idempotent. A device that stood in for it goes with this process.

        The kernel may take long for that, and the sandbox's end need not wait for it.
        """
        self._stand_in = None
        self.close()
        if self._outsider is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._outsider.pid, signal.SIGKILL)
