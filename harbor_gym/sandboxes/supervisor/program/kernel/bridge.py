"""Ethernet bridges, and the cables that join a network namespace to one.

Source: rtnetlink(7), veth(4), the kernel's linux/if_link.h.
"""

import contextlib
import os
import socket
import struct

from kernel import netlink
from kernel.calls import write_file
from kernel.netlink import Value

_ROUTE = 0
_NEW_LINK, _NEW_ADDRESS = 16, 20
_UP = 1
_NAME, _MASTER, _LINK_INFO, _NAMESPACE = 3, 10, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
_EXCLUSIVE = 0x200


def make(name: str) -> None:
    """Make a bridge in this process's network namespace, without an address.

    Raises:
        OSError: The kernel refuses, or has no bridges.
    """
    _no_ipv6("default")
    given: list[tuple[int, Value]] = [(_NAME, _text(name)), (_LINK_INFO, [(_KIND, b"bridge\0")])]
    _send([(_NEW_LINK, _link(_UP), given)], "no bridge for the services' network")


def plug(bridge: str, port: str, namespace: int, device: str) -> None:
    """Lay a cable from a bridge of this process's network namespace to a new device in another one.

    Args:
        bridge: The bridge.
        port: Name of the cable's end here.
        namespace: A descriptor of the other namespace.
        device: Name of the cable's end there, which is down.

    Raises:
        OSError: The kernel refuses, or has no such cables (veth).
    """
    there: list[tuple[int, Value]] = [(_NAME, _text(device)), (_NAMESPACE, struct.pack("I", namespace))]
    peer = _link(0) + netlink.attributes(there)
    given: list[tuple[int, Value]] = [
        (_NAME, _text(port)),
        (_MASTER, struct.pack("I", socket.if_nametoindex(bridge))),
        (_LINK_INFO, [(_KIND, b"veth\0"), (_DATA, [(_PEER, peer)])]),
    ]
    _send([(_NEW_LINK, _link(_UP), given)], f"no cable for {device}")


def raise_device(name: str, address: str, bits: int) -> None:
    """Give a device of this process's network namespace an IPv4 address and none of IPv6, and switch it on.

    Raises:
        OSError: The kernel refuses.
    """
    _no_ipv6(name)
    index, own = socket.if_nametoindex(name), socket.inet_aton(address)
    to_all = (int.from_bytes(own) | (1 << 32 - bits) - 1).to_bytes(4)
    body = struct.pack("BBBBI", socket.AF_INET, bits, 0, 0, index)
    made: list[tuple[int, bytes, list[tuple[int, Value]]]] = [
        (_NEW_ADDRESS, body, [(2, own), (1, own), (4, to_all)]),  # IFA_LOCAL, _ADDRESS, _BROADCAST
        (_NEW_LINK, _link(_UP, index), []),
    ]
    _send(made, f"no address for {name}")


def _no_ipv6(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        write_file(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "1")


def _text(name: str) -> bytes:
    return os.fsencode(name) + b"\0"


def _link(flags: int, index: int = 0) -> bytes:
    return struct.pack("BxHiII", 0, 0, index, flags, _UP)


def _send(made: list[tuple[int, bytes, list[tuple[int, Value]]]], what: str) -> None:
    content = b""
    for number, (kind, body, given) in enumerate(made, 1):
        flags = netlink.ACK | (netlink.CREATE | _EXCLUSIVE if kind != _NEW_LINK or given else 0)
        content += netlink.message(kind, flags, number, body + netlink.attributes(given))
    netlink.send(_ROUTE, content, len(made), what)
