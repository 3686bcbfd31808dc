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


class UserNetwork:
    """One sandbox's slirp4netns. Made in the supervisor before it enters the sandbox's namespaces."""

    def __init__(self, config: SupervisorConfig) -> None:
        self._program: str | None = config.slirp4netns
        self._outsider: Outsider | None = None
        if config.may_have_network:
            self._outsider = Outsider(self._become, is_for_one=not config.may_switch_network)
        self._may_switch = config.may_switch_network
        self._ready = self._exit = self._log = -1
        self.is_open = False

    @property
    def pid(self) -> int:
        """The process that the network ends with; 0 if there is none."""
        return 0 if self._outsider is None else self._outsider.pid

    def begin(self, namespace: int) -> None:
        """Begin to connect a network namespace; :meth:`wait` returns when it has a network.

        Raises:
            OSError: This sandbox was not to have one, or no other.
        """
        if self._outsider is None:
            raise OSError("the sandbox was made without a network connection that comes later")
        self._ready, ready = os.pipe()
        leave, self._exit = os.pipe()
        self._log = os.memfd_create("slirp4netns")
        try:
            self._outsider.start([ready, leave, self._log, namespace])
        finally:
            os.close(ready)
            os.close(leave)
        self.is_open = True

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

    def _become(self, handles: list[int]) -> NoReturn:
        ready, leave, log, namespace = handles
        try:
            # It detaches its old root; mounts below that are still shared with this machine (Docker's), and would be
            # detached there, too.
            os.unshare(os.CLONE_NEWNS)
            mount("none", "/", None, MS_REC | MS_PRIVATE)
            os.chdir("/")
            os.dup2(log, 1)
            os.dup2(log, 2)
            for handle in (ready, leave, namespace):
                os.set_inheritable(handle, True)
            argv = [self._program or "slirp4netns", "--configure", f"--mtu={_MTU}", "--disable-host-loopback"]
            argv += ["--enable-sandbox", "--enable-seccomp", f"--ready-fd={ready}", f"--exit-fd={leave}"]
            argv += ["--netns-type=path", f"/proc/self/fd/{namespace}", _DEVICE]
            os.execve(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        except BaseException as exc:  # a forked child must never return into its parent's code
            os.write(2, str(exc).encode("utf-8", "replace"))
        finally:
            os._exit(126)

    def close(self) -> None:
        """End the network with every connection. Idempotent."""
        if not self.is_open or self._outsider is None:
            return
        # In this order: a program that ends with its pipe would also end the process that starts the next one.
        self._outsider.end()
        os.close(self._exit)
        self.is_open = False
        if not self._may_switch:
            self._outsider = None

    def leave(self) -> None:
        """Kill the network's processes for good, without waiting: the kernel takes 20 ms to remove the device."""
        if self._outsider is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._outsider.pid, signal.SIGKILL)
