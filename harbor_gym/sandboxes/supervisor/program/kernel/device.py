"""A network device whose packets the kernel keeps until a program carries them.

A packet on an Ethernet device (TAP) waits for the link-layer address of its next hop. The kernel asks for the address
by a frame, asks again until there is an answer, and keeps 208 KiB of packets for each next hop meanwhile. The process
that made the device learns from that frame that there is something to carry, and reads no frame. The program that
attaches to the device answers the next frame, and gets the packets.

Source: the kernel's networking/tuntap.rst and networking/ip-sysctl.rst, arp(7), rtnetlink(7).
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

from kernel import netlink
from kernel.calls import write_file
from kernel.netlink import Value

_TUN = "/dev/net/tun"
_TUNSETIFF, _TUNSETPERSIST, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x400454CB, 0x2, 0x1000
_ROUTE = 0
_NEW_LINK, _DELETE_LINK, _NEW_ADDRESS, _NEW_ROUTE, _SET_NEIGHBORS = 16, 17, 20, 24, 67
_UP, _MAIN_TABLE, _BOOT, _UNICAST = 1, 254, 3, 1
_NO_ADDRESS, _UNTESTED = "1", 2
"""IN6_ADDR_GEN_MODE_NONE, with which a device has no address by itself; IFA_F_NODAD: an address is ready at once."""
_ASKS_AGAIN_MS, _ASKS = 20, 500
"""Ten seconds: more than a program may take to start. By itself the kernel asks three times, once in a second."""
type _Made = tuple[int, bytes, list[tuple[int, Value]]]
"""A message: its kind, its body and its attributes."""


def make(name: str, mtu: int, address: str, bits: int, gateway: str) -> tuple[int, bool]:
    """Make the device in this process's network namespace, as the way to everywhere. It outlives its descriptors.

    Returns:
        A descriptor that is ready to be read once there is a packet, and whether the kernel (since 5.16) keeps the
        packets when that is closed.

    Raises:
        OSError: The kernel refuses.
    """
    handle = _attach(name)
    try:
        fcntl.ioctl(handle, _TUNSETPERSIST, 1)
        _set_up(socket.if_nametoindex(name), mtu, address, bits, gateway)
        try:
            write_file(f"/proc/sys/net/ipv4/conf/{name}/arp_evict_nocarrier", "0")
        except FileNotFoundError:
            return handle, False
    except BaseException:
        os.close(handle)
        raise
    return handle, True


def route_ipv6(name: str, address: str, networks: Iterable[str]) -> None:
    """Make the device the way to some networks of IPv6. Nobody answers there for a neighbor.

    Args:
        name: The device.
        address: Its own, which it has at once.
        networks: Those.

    Raises:
        OSError: The kernel refuses.
    """
    # The kernel gave it a link-local address, and with it a way to others, where a connection would wait in vain.
    for setting, value in (("disable_ipv6", "1"), ("addr_gen_mode", _NO_ADDRESS), ("disable_ipv6", "0")):
        set_ipv6(name, setting, value)
    index, own = socket.if_nametoindex(name), socket.inet_pton(socket.AF_INET6, address)
    # IFA_ADDRESS
    made: list[_Made] = [(_NEW_ADDRESS, struct.pack("BBBBI", socket.AF_INET6, 128, _UNTESTED, 0, index), [(1, own)])]
    for network in networks:
        first, _, bits = network.partition("/")
        body = struct.pack("8BI", socket.AF_INET6, int(bits), 0, 0, _MAIN_TABLE, _BOOT, 0, _UNICAST, 0)
        # RTA_DST, _OIF
        made.append((_NEW_ROUTE, body, [(1, socket.inet_pton(socket.AF_INET6, first)), (4, struct.pack("I", index))]))
    _send(made)


def set_ipv6(name: str, setting: str, value: str) -> None:
    """Change a setting of a device, such as ``disable_ipv6``.

    Raises:
        OSError: The kernel refuses, or has no IPv6.
    """
    write_file(f"/proc/sys/net/ipv6/conf/{name}/{setting}", value)


def is_free(name: str) -> bool:
    """Return whether no process has a descriptor of the device, so that a program can attach to it.

    Raises:
        OSError: The kernel refuses for another reason.
    """
    try:
        os.close(_attach(name))
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        return False
    return True


def remove(name: str) -> None:
    """Remove the device, whoever has it.

    Raises:
        OSError: The kernel refuses.
    """
    body = bytes(16) + netlink.attributes([(3, name.encode() + b"\0")])
    netlink.send(_ROUTE, netlink.message(_DELETE_LINK, netlink.ACK, 1, body), 1, f"{name} stays")


def _attach(name: str) -> int:
    handle = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, _TUNSETIFF, struct.pack("=16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _set_up(index: int, mtu: int, address: str, bits: int, gateway: str) -> None:
    own, number = socket.inet_aton(address), struct.pack("I", index)
    to_all = (int.from_bytes(own) | (1 << 32 - bits) - 1).to_bytes(4)
    asks = struct.pack("I", _ASKS)
    _send([
        # NDTPA_IFINDEX, _RETRANS_TIME, _UCAST_PROBES, _MCAST_PROBES
        (_SET_NEIGHBORS, struct.pack("BxH", socket.AF_INET, 0), [
            (1, b"arp_cache\0"), (6, [(1, number), (5, struct.pack("Q", _ASKS_AGAIN_MS)), (10, asks), (11, asks)]),
        ]),
        # IFA_LOCAL, _ADDRESS, _BROADCAST
        (_NEW_ADDRESS, struct.pack("BBBBI", socket.AF_INET, bits, 0, 0, index), [(2, own), (1, own), (4, to_all)]),
        # IFLA_MTU
        (_NEW_LINK, struct.pack("BxHiII", 0, 0, index, _UP, _UP), [(4, struct.pack("I", mtu))]),
        # RTA_GATEWAY, _OIF
        (_NEW_ROUTE, struct.pack("8BI", socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _BOOT, 0, _UNICAST, 0),
         [(5, socket.inet_aton(gateway)), (4, number)]),
    ])  # fmt: skip


def _send(made: list[_Made]) -> None:
    content = b""
    for place, (kind, body, further) in enumerate(made, 1):
        flags = netlink.CREATE | (netlink.ACK if place == len(made) else 0)  # errors come in any case
        content += netlink.message(kind, flags, place, body + netlink.attributes(further))
    netlink.send(_ROUTE, content, len(made), "no device for the network")
