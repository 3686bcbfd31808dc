"""IPv4 routes of this process's network namespace.

Source: rtnetlink(7).
"""

import os
import socket
import struct

_NEW_ROUTE, _REQUEST_FLAGS = 24, 0x1 | 0x4 | 0x100 | 0x400
"""RTM_NEWROUTE; NLM_F_REQUEST, ACK, REPLACE, CREATE."""
_TABLE_MAIN, _PROTOCOL_STATIC = 254, 4
_SCOPE_GLOBAL, _SCOPE_LINK = 0, 253
_TYPE_UNICAST, _TYPE_UNREACHABLE = 1, 7
_DESTINATION, _OUTPUT_DEVICE, _METRIC = 1, 4, 6
_LAST_RESORT = 1024
_ANY_PORT = 9


type _Route = tuple[int, int, int, dict[int, bytes]]
"""Length of the destination's prefix, scope, type, attributes."""


def close_networks(networks: list[str]) -> None:
    """Make networks (``a.b.c.d/n``) unreachable, other routes or not.

    Raises:
        OSError: The kernel refuses.
    """
    parts = [network.partition("/") for network in networks]
    _add(
        [
            (int(length), _SCOPE_GLOBAL, _TYPE_UNREACHABLE, {_DESTINATION: socket.inet_aton(address)})
            for address, _, length in parts
        ]
    )


def has_way_to(address: bytes) -> bool:
    """Tell whether there is a route to an IPv4 address. A process that names a device sends without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((socket.inet_ntoa(address), _ANY_PORT))
        except OSError:
            return False
    return True


def lead_all_to(device: str) -> None:
    """Make a device the way to everywhere, unless there is another.

    Raises:
        OSError: The kernel refuses.
    """
    values = {_OUTPUT_DEVICE: socket.if_nametoindex(device), _METRIC: _LAST_RESORT}
    attributes = {kind: struct.pack("=I", value) for kind, value in values.items()}
    _add([(0, _SCOPE_LINK, _TYPE_UNICAST, attributes)])


def _add(routes: list[_Route]) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        for length, scope, kind, attributes in routes:
            route = struct.pack(
                "=BBBBBBBBI", socket.AF_INET, length, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, kind, 0
            )
            body = route + b"".join(struct.pack("=HH4s", 8, name, value) for name, value in attributes.items())
            netlink.send(struct.pack("=IHHII", 16 + len(body), _NEW_ROUTE, _REQUEST_FLAGS, 0, 0) + body)
            code = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
            if code != 0:
                raise OSError(-code, f"no route {attributes} of type {kind}: {os.strerror(-code)}")
