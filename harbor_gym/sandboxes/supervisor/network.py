"""A sandbox's way out: slirp4netns, a network stack in a process of its own that has no rights on the machine.

Source: slirp4netns(1), rtnetlink(7).
"""

import contextlib
import os
import signal
import socket
import struct
from typing import Any, NoReturn

from kernel import PR_SET_PDEATHSIG, prctl
from outside import Outsider

_RTM_NEWROUTE, _REQUEST_FLAGS = 24, 0x1 | 0x4 | 0x100 | 0x400
"""NLM_F_REQUEST, ACK, REPLACE, CREATE."""
_TABLE_MAIN, _PROTOCOL_STATIC, _TYPE_UNREACHABLE, _ATTRIBUTE_DESTINATION = 254, 4, 7, 1
_DEVICE = "tap0"


def close_routes(networks: list[str]) -> None:
    """Make IPv4 networks (``a.b.c.d/n``) unreachable in this process's network namespace, other routes or not."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        for sequence, network in enumerate(networks):
            address, _, length = network.partition("/")
            route = struct.pack(
                "=BBBBBBBBI", socket.AF_INET, int(length), 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, 0, _TYPE_UNREACHABLE, 0
            )
            body = route + struct.pack("=HH4s", 8, _ATTRIBUTE_DESTINATION, socket.inet_aton(address))
            header = struct.pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, _REQUEST_FLAGS, sequence, 0)
            netlink.send(header + body)
            code = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
            if code != 0:
                raise OSError(-code, f"no unreachable route for {network}: {os.strerror(-code)}")


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

    def open(self, init: int, init_pidfd: int) -> None:
        """Give the sandbox a network; return when it is configured. Nothing happens where it has one.

        Raises:
            OSError: It does not come up.
        """
        if self.pid:
            return
        close_routes(self._closed)
        ready_read, ready_write = os.pipe()
        exit_read, self._exit = os.pipe()
        log = os.memfd_create("slirp4netns")
        handles = [ready_write, exit_read, log]
        try:
            if self._outsider is not None:
                self._outsider.start(init, handles)
                self.pid = self._outsider.pid
            else:
                self.pid = self._start(init, init_pidfd, handles)
        finally:
            os.close(ready_write)
            os.close(exit_read)
        is_ready = os.read(ready_read, 1)
        os.close(ready_read)
        said = os.pread(log, 2000, 0).decode("utf-8", "replace").strip()
        os.close(log)
        if not is_ready:
            self.close()
            raise OSError(f"slirp4netns gives no network: {said or 'it ended without a word'}")

    def _start(self, init: int, init_pidfd: int, handles: list[int]) -> int:
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
            argv = [self._program or "slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback"]
            argv += ["--enable-sandbox", "--enable-seccomp", f"--ready-fd={ready}", f"--exit-fd={leave}"]
            os.execve(argv[0], [*argv, str(init), _DEVICE], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        except BaseException as exc:  # a forked child must never return into its parent's code
            os.write(2, str(exc).encode("utf-8", "replace"))
        finally:
            os._exit(126)

    def close(self) -> None:
        """End the network with every connection. Idempotent."""
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
        """End the network for good. Idempotent."""
        self.close()
        if self._outsider is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._outsider.pid, signal.SIGKILL)
