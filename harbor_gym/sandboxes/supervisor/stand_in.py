"""A network device that leads to the supervisor, in the place of a network that nobody has used yet.

Source: the kernel's networking/tuntap.rst and networking/ip-sysctl.rst, netdevice(7), packet(7), RFC 826.
"""

import contextlib
import fcntl
import os
import socket
import struct

import routes

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_HEADER_BYTES, _DESTINATION = 20, slice(16, 20)
_IPV4, _ETHERTYPE_IPV4, _ETHERTYPE_ARP = 4, 0x0800, 0x0806
_ARP_REQUEST = bytes.fromhex("0001080006040001")
"""What it begins with where it is about IPv4 on Ethernet."""

_MAX_PACKETS, _MAX_PACKET_BYTES = 64, 1 << 16


class StandIn:
    """A device that carries nothing: what is sent by it comes to ``handle``."""

    def __init__(self, name: str, address: str, mask: str, mtu: int) -> None:
        """Make it in this process's network namespace, as the way to everywhere unless there is another.

        Raises:
            OSError: The kernel refuses.
        """
        self._name = name
        try:
            self.handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise OSError("a public network needs /dev/net/tun, which this machine has not: modprobe tun") from None
        try:
            device = name.encode()
            fcntl.ioctl(self.handle, _TUNSETIFF, struct.pack("=16sH22x", device, _IFF_TUN | _IFF_NO_PI))
            _silence_ipv6(name)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
                    place = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                    fcntl.ioctl(control, request, struct.pack("=16s16s8x", device, place))
                fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("=16si20x", device, mtu))
            self._set_flags(_IFF_UP | _IFF_RUNNING)
            routes.lead_all_to(name)
        except BaseException:
            self.close()
            raise

    def _set_flags(self, flags: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("=16sH22x", self._name.encode(), flags))

    def take(self) -> list[bytes]:
        """Return the first of the IPv4 packets that were sent and not taken yet."""
        packets: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(packets) < _MAX_PACKETS:
                packets.append(os.read(self.handle, _MAX_PACKET_BYTES))
        return [packet for packet in packets if len(packet) >= _HEADER_BYTES and packet[0] >> 4 == _IPV4]

    def quiesce(self) -> None:
        """Have nothing more sent by it."""
        self._set_flags(0)

    def close(self) -> None:
        """Remove the device."""
        os.close(self.handle)


def _silence_ipv6(device: str) -> None:
    """Keep the kernel from looking for IPv6 routers by itself."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        setting = os.open(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(setting, b"1")
        finally:
            os.close(setting)


def _has_way(packet: bytes) -> bool:
    return routes.has_way_to(packet[_DESTINATION])


def send_again(packets: list[bytes], device: str, address: str, neighbor: bytes) -> None:
    """Send IPv4 packets by another device, to the neighbor with that link-layer address, where there is a route to
    their destinations.

    The device's own ``address`` is announced first: slirp4netns sets its clock after the first frame that it reads, and
    would take what a datagram opened before that for long over.
    """
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as link:
        link.bind((device, 0))
        here, own = link.getsockname()[4], socket.inet_aton(address)
        announcement = struct.pack("=6s4s6s4s", here, own, bytes(6), own)
        link.sendto(_ARP_REQUEST + announcement, (device, _ETHERTYPE_ARP, 0, 0, neighbor))
        for packet in filter(_has_way, packets):
            link.sendto(packet, (device, _ETHERTYPE_IPV4, 0, 0, neighbor))
