"""The network of a sandbox with an allowlist: sockets in its network namespace, and a proxy outside behind them.

The namespace has a device with a route to everywhere in IPv4 and to listed networks of IPv6, from which nobody takes
packets: what the packet filter does not lead to the sockets goes nowhere. The proxy starts with the first connection or
query; many sandboxes have none.

Source: the kernel's linux/netfilter/nf_tables.h (redirect), udp(7), tcp(7).
"""

import contextlib
import os
import select
import signal
import socket
from typing import NoReturn

from kernel import device, packet_filter
from messages import POOL, Allowlist, Proxied, SupervisorConfig, to_json
from network import DEVICE, add_ipv6, make_device
from outside import Outsider

_BACKLOG = 256
_OUTPUT_BYTES = 2000


def prepare(config: SupervisorConfig) -> None:
    """Import what the proxy needs, if there may be one: it is forked, which takes a tenth of a Python's start."""
    if config.may_have_allowlist:
        __import__("egress.proxy")  # no other sandbox's start waits for it


class ListedNetwork:
    """One sandbox's. Made in the supervisor before it enters the sandbox's namespaces.

    Args:
        config: The supervisor's configuration.
        poll: Gets the sockets that announce the first query and the first connection.
    """

    def __init__(self, config: SupervisorConfig, poll: select.poll) -> None:
        self._config = config
        self._poll = poll
        self._outsider = Outsider(self._become) if config.may_have_allowlist else None
        self._sockets: list[socket.socket] = []
        self._proxied = self._log = -1
        self._has_device = self._is_started = False
        self.is_open = False

    @property
    def pid(self) -> int:
        """The process that the network ends with; 0 if there is none."""
        return 0 if self._outsider is None else self._outsider.pid

    def open(self, allowlist: Allowlist) -> None:
        """Give the sandbox this network. To be called in its network namespace.

        Raises:
            OSError: This sandbox was not to have one, or the kernel refuses.
        """
        if self._outsider is None:
            raise OSError("the sandbox was made without an allowlist that comes later")
        config = self._config
        self.is_open = True
        ipv6 = [network for network in allowlist.networks if ":" in network]
        ports = [self._port(socket.SOCK_DGRAM), self._port(socket.SOCK_STREAM)]
        if ipv6:
            device.set_ipv6("lo", "disable_ipv6", "0")  # some machines have it off in new network namespaces
            ports.append(self._port(socket.SOCK_STREAM, socket.AF_INET6))
        networks = (*allowlist.networks, *([POOL] if allowlist.names else []))
        packet_filter.allow_networks(networks, config.name_server, *ports, devices=config.devices)
        os.close(make_device()[0])
        self._has_device = True
        if ipv6:
            add_ipv6(ipv6)
        proxied = Proxied(*allowlist, config.closed_networks, config.name_server, config.is_rootless)
        self._proxied, self._log = os.memfd_create("proxied"), os.memfd_create("proxy")
        os.pwrite(self._proxied, to_json(proxied).encode(), 0)

    def _port(self, kind: socket.SocketKind, family: socket.AddressFamily = socket.AF_INET) -> int:
        """Return the port of a further socket on the loopback device."""
        own = socket.socket(family, kind)
        self._sockets.append(own)
        own.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        if kind == socket.SOCK_STREAM:
            own.listen(_BACKLOG)
        self._poll.register(own, select.POLLIN)
        return own.getsockname()[1]

    def is_due(self, ready: set[int]) -> bool:
        """Return whether :meth:`start` is to be called, given the descriptors that are ready."""
        return any(own.fileno() in ready for own in self._sockets)

    def start(self) -> None:
        """Let the proxy serve."""
        assert self._outsider is not None
        self._outsider.start([self._proxied, self._log, *(own.fileno() for own in self._sockets)])
        self._is_started = True
        self._close_sockets()

    def _close_sockets(self) -> None:
        sockets, self._sockets = self._sockets, []
        for own in sockets:
            self._poll.unregister(own)
            own.close()
        if self._proxied >= 0:
            os.close(self._proxied)
            self._proxied = -1

    def _become(self, handles: list[int]) -> NoReturn:
        from egress import proxy  # imported by prepare, before this process could import nothing more

        try:
            spec, log, *sockets = handles
            for target in (1, 2):
                os.dup2(log, target)
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # no pathlib here
                if int(name) > 2 and int(name) not in (spec, *sockets):
                    with contextlib.suppress(OSError):  # the directory's own
                        os.close(int(name))
            proxy.run(spec, sockets, os.getppid())
        except BaseException as exc:  # a forked child must never return into its parent's code
            os.write(2, str(exc).encode("utf-8", "replace"))
        finally:
            os._exit(126)

    def said(self) -> str:
        """Return what the proxy has printed."""
        return os.pread(self._log, _OUTPUT_BYTES, 0).decode("utf-8", "replace").strip() if self._log >= 0 else ""

    def close(self) -> None:
        """End the network with every connection. Idempotent. To be called in the sandbox's network namespace.

        Raises:
            OSError: The kernel refuses.
        """
        if not self.is_open:
            return
        if self._is_started:
            assert self._outsider is not None
            self._outsider.end()
            self._is_started = False
        self._close_sockets()
        self.is_open = False
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        if self._has_device:
            device.remove(DEVICE)
            self._has_device = False
        if self._config.may_have_network:
            networks, devices = self._config.closed_networks, self._config.devices
            packet_filter.close_networks(networks, self._config.name_server, devices=devices, replaces=True)

    def leave(self) -> None:
        """Kill the network's processes for good, without waiting."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
