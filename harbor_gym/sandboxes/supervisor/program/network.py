"""A sandbox's network: slirp4netns, a network stack in a process of its own that has no rights on the machine.

It starts with the sandbox's first packet; until then there is only its device. Many sandboxes never send one.

Source: slirp4netns(1).
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from typing import NoReturn

from kernel import device
from kernel.calls import MS_PRIVATE, MS_REC, mount
from messages import SupervisorConfig
from outside import Outsider

DEVICE, _MTU = "tap0", 65520
_ADDRESS, _BITS, _GATEWAY = "10.0.2.100", 24, "10.0.2.2"
"""Those of slirp4netns."""
_IPV6_ADDRESS = "2001:2::100"
"""One that nobody has (RFC 5180)."""
_START_TIMEOUT_SEC, _COPIES_SEC, _PAUSE_SEC = 8.0, 1.0, 0.001
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class UserNetwork:
    """One sandbox's slirp4netns. Made in the supervisor before it enters the sandbox's namespaces.

    Args:
        config: The supervisor's configuration.
        first: A descriptor of the static program.
        poll: Gets the descriptor that announces the first packet.
    """

    def __init__(self, config: SupervisorConfig, first: int, poll: select.poll) -> None:
        self._program = config.slirp4netns or "slirp4netns"
        self._first = first
        self._poll = poll
        self._may_open = config.may_have_network
        self._outsider: Outsider | None = None
        self._home = -1
        if config.may_have_network and config.is_rootless:
            self._outsider = Outsider(self._become)  # this process can't return to the machine's namespaces
        elif config.may_have_network:
            self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._only = 0
        """The process id of a network that was started without another process."""
        self._ready = self._exit = self._log = -1
        self._device = -1
        self._keeps_packets = True
        self.is_open = False

    @property
    def pid(self) -> int:
        """The process that the network ends with; 0 if there is none."""
        return self._only if self._outsider is None else self._outsider.pid

    def open(self) -> None:
        """Give the sandbox a network. To be called in its network namespace.

        Raises:
            OSError: This sandbox was not to have one, or the kernel refuses.
        """
        if not self._may_open:
            raise OSError("the sandbox was made without a network connection that comes later")
        self._device, self._keeps_packets = make_device()
        self._poll.register(self._device, select.POLLIN)
        self.is_open = True

    def is_due(self, ready: set[int]) -> bool:
        """Return whether :meth:`start` is to be called, given the descriptors that are ready."""
        return self._device >= 0 and (self._device in ready or not self._keeps_packets)

    def leave_device(self) -> None:
        """Close this process's descriptor of the device: that of the supervisor, or of a child that runs for long."""
        if self._device >= 0:
            self._poll.unregister(self._device)
            os.close(self._device)
            self._device = -1

    def start(self) -> None:
        """Let slirp4netns carry the packets; return when it does. To be called in the sandbox's namespaces.

        Raises:
            OSError: It does not come up.
        """
        self._free_device()
        self._ready, ready = os.pipe()
        leave, self._exit = os.pipe()
        self._log = os.memfd_create("slirp4netns")
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            if self._outsider is not None:
                self._outsider.start([ready, leave, self._log, namespace])
            else:
                self._spawn([ready, leave, self._log, namespace])
        finally:
            for handle in (ready, leave, namespace):
                os.close(handle)
        self._wait()

    def _free_device(self) -> None:
        self.leave_device()
        end = time.monotonic() + _COPIES_SEC
        while not device.is_free(DEVICE):
            # A child that was just forked closes its copy. One that the policy stopped keeps it.
            if time.monotonic() > end:
                device.remove(DEVICE)
                os.close(make_device()[0])
                return
            time.sleep(_PAUSE_SEC)

    def _spawn(self, handles: list[int]) -> None:
        """Start it in the machine's namespaces: in the sandbox's it could be seen, and would have this network.

        By the static program: a forked Python would take ten times as long to become it.
        """
        argv = self._argv(handles)
        tied = ["tied", str(os.getpid()), argv[0], *argv]
        output = [(os.POSIX_SPAWN_DUP2, handles[2], target) for target in (1, 2)]
        own, inside = (os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("pid", "pid_for_children"))
        try:
            os.setns(own, os.CLONE_NEWPID)
            os.setns(self._home, os.CLONE_NEWNET)
            self._only = os.posix_spawn(f"/proc/self/fd/{self._first}", tied, _ENVIRONMENT, file_actions=output)
        finally:
            os.setns(inside, os.CLONE_NEWPID)
            os.setns(handles[-1], os.CLONE_NEWNET)
            os.close(own)
            os.close(inside)

    def _wait(self) -> None:
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
        argv = [self._program, f"--mtu={_MTU}", "--disable-host-loopback"]
        argv += ["--enable-sandbox", "--enable-seccomp", f"--ready-fd={ready}", f"--exit-fd={leave}"]
        return [*argv, "--netns-type=path", f"/proc/self/fd/{namespace}", DEVICE]

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
        """End the network with every connection. Idempotent. To be called in the sandbox's network namespace."""
        if not self.is_open:
            return
        self.is_open = False
        if self._device >= 0:
            self.leave_device()
        else:
            # In this order: a program that ends with its pipe would also end the process that starts the next one.
            if self._outsider is not None:
                self._outsider.end()
            else:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it ended before
                    os.kill(self._only, signal.SIGKILL)
                    os.waitpid(self._only, 0)
                self._only = 0
            os.close(self._exit)
        device.remove(DEVICE)

    def leave(self) -> None:
        """Kill the network's processes for good, without waiting: the kernel takes 20 ms to remove the device."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def make_device() -> tuple[int, bool]:
    """Make a sandbox's device: that of a public network and of an allowlist's, as :func:`kernel.device.make` does."""
    return device.make(DEVICE, _MTU, _ADDRESS, _BITS, _GATEWAY)


def add_ipv6(networks: Iterable[str]) -> None:
    """Make the device the way to networks of IPv6, too, as :func:`kernel.device.route_ipv6` does."""
    device.route_ipv6(DEVICE, _IPV6_ADDRESS, networks)
