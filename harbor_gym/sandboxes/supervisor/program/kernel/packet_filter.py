"""The packet filter of a sandbox's network namespace, by nftables: no process inside can see or change its rules.

Routes would not suffice: a program that names a device (SO_BINDTODEVICE) bypasses them. The rules are those of
:data:`RULES` or :data:`LISTED_RULES`, as messages to the kernel: libnftables would take a hundred times as long for
each sandbox.

Source: nft(8), the kernel's linux/netfilter/nf_tables.h and nfnetlink.h.
"""

import fcntl
import functools
import socket
import struct
from collections.abc import Iterable

from kernel import netlink
from kernel.netlink import ACK, APPEND, CREATE, Value, attributes

RULES = """\
table inet harbor_gym {{
  chain output {{
    type filter hook output priority 0; policy accept;
    oifname "lo" accept
    meta nfproto ipv6 drop
{devices}    ip daddr {name_server} udp dport 53 accept
    ip daddr {name_server} tcp dport 53 accept
    ip daddr {{ {closed} }} reject
  }}
}}
"""
LISTED_RULES = """\
table inet harbor_gym {{
  chain listed {{
    type nat hook output priority -100; policy accept;
    oifname "lo" accept
{devices}    ip daddr {name_server} udp dport 53 redirect to :{queries_port}
    ip daddr {name_server} tcp dport 53 redirect to :{connections_port}
    meta l4proto tcp ip daddr {{ {networks} }} redirect to :{connections_port}
  }}
  chain output {{
    type filter hook output priority 0; policy accept;
    oifname "lo" accept
    meta nfproto ipv6 drop
{devices}    ct status dnat accept
    meta nfproto ipv4 reject
  }}
}}
"""
"""Who may be reached is reached by a proxy, whose sockets have the two ports; every other packet is refused."""
DEVICE_RULE = '    oifname "{device}" accept\n'
"""One of ``devices``: what leaves by a network between services is not filtered."""
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
_NETLINK_NETFILTER, _SUBSYSTEM, _INET = 12, 10, 1
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE, _NEW_SET, _NEW_ELEMENTS = (_SUBSYSTEM << 8 | number for number in (0, 3, 6, 9, 12))
_DELETE_TABLE = _SUBSYSTEM << 8 | 2
_TABLE, _CHAIN, _LISTED, _SET = b"harbor_gym\0", b"output\0", b"listed\0", b"__set%d\0"
_OUTPUT_HOOK, _DROP, _ACCEPT, _EQUAL, _NOT_EQUAL = 3, 0, 1, 0, 1
_BEFORE_FILTERS = -100 & 0xFFFFFFFF
_LOOPBACK = b"lo".ljust(16, b"\0")
_STATUS, _REDIRECTED = 2, struct.pack("I", 1 << 5)
"""NFT_CT_STATUS and IPS_DST_NAT."""
_DEVICE, _FAMILY, _PROTOCOL = 7, 15, 16
_NETWORK, _TRANSPORT = 1, 2
_ANONYMOUS_CONSTANT_INTERVALS, _IPV4_TYPE, _ENDS = 7, 7, 1
_PORT_UNREACHABLE = 3
_DNS = 53
_REJECT: tuple[int, Value] = (1, [(1, b"reject\0"), (2, [(1, 0), (2, bytes([_PORT_UNREACHABLE]))])])
type _Made = tuple[int, int, list[tuple[int, Value]]]
"""A message: its kind, its flags and its attributes."""


def raise_loopback() -> None:
    """Switch on this network namespace's loopback device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))


def close_networks(
    networks: Iterable[str], name_server: str, *, devices: Iterable[str] = (), replaces: bool = False
) -> None:
    """Block packets of this network namespace to some networks, on any route, and all IPv6.

    Args:
        networks: As ``a.b.c.d/n``; none contains another.
        name_server: An address in them whose port 53 stays open.
        devices: Devices by which every packet but those of IPv6 may leave.
        replaces: Remove the rules of :func:`allow_networks` in the same moment.

    Raises:
        OSError: The kernel refuses.
    """
    content, last = messages(tuple(networks), name_server, tuple(devices), replaces=replaces)
    netlink.send(_NETLINK_NETFILTER, content, last, "no packet filter for the network")


def allow_networks(
    networks: Iterable[str],
    name_server: str,
    connections_port: int,
    queries_port: int,
    *,
    devices: Iterable[str] = (),
) -> None:
    """Lead connections of this network namespace to some networks to a proxy, in place of any rules before.

    Every other packet is refused, but those to the name server's port 53, which the proxy answers.

    Args:
        networks: As ``a.b.c.d/n``; none contains another.
        name_server: An address.
        connections_port: The proxy's own for connections, on this network namespace's loopback device.
        queries_port: Its own for queries.
        devices: As for :func:`close_networks`.

    Raises:
        OSError: The kernel refuses.
    """
    to_dns = [*_to(name_server), *_at(_TRANSPORT, 2, 2, struct.pack("!H", _DNS))]
    made = [
        _chain(_LISTED, b"nat\0", _BEFORE_FILTERS),
        _rule([*_is(_DEVICE, _LOOPBACK), _verdict(_ACCEPT)], _LISTED),
        *_open(devices, _LISTED),
        _rule([*_is_protocol(socket.IPPROTO_UDP), *to_dns, *_redirect(queries_port)], _LISTED),
        _rule([*_is_protocol(socket.IPPROTO_TCP), *to_dns, *_redirect(connections_port)], _LISTED),
        *_set(networks),
        _rule([*_is_protocol(socket.IPPROTO_TCP), *_to_set(), *_redirect(connections_port)], _LISTED),
        _chain(_CHAIN, b"filter\0", 0),
        _rule([*_is(_DEVICE, _LOOPBACK), _verdict(_ACCEPT)]),
        _rule([*_is(_FAMILY, bytes([socket.AF_INET6])), _verdict(_DROP)]),
        *_open(devices),
        _rule([
            _expression(b"ct", [(2, _STATUS), (1, 1)]),
            _expression(b"bitwise", [(1, 1), (2, 1), (3, 4), (4, [(1, _REDIRECTED)]), (5, [(1, bytes(4))])]),
            _expression(b"cmp", [(1, 1), (2, _NOT_EQUAL), (3, [(1, bytes(4))])]),
            _verdict(_ACCEPT),
        ]),
        _rule([*_is(_FAMILY, bytes([socket.AF_INET])), _REJECT]),
    ]  # fmt: skip
    what = "no packet filter for the allowlist (which needs nftables with nat, redirect and connection tracking)"
    netlink.send(_NETLINK_NETFILTER, *_batch(made, replaces=True), what)


@functools.cache
def messages(
    networks: tuple[str, ...], name_server: str, devices: tuple[str, ...] = (), *, replaces: bool = False
) -> tuple[bytes, int]:
    """Return the messages to the kernel, and the number of the one that is answered after the whole."""
    to_dns = _at(_TRANSPORT, 2, 2, struct.pack("!H", _DNS))
    made = [
        _chain(_CHAIN, b"filter\0", 0),
        _rule([*_is(_DEVICE, _LOOPBACK), _verdict(_ACCEPT)]),
        _rule([*_is(_FAMILY, bytes([socket.AF_INET6])), _verdict(_DROP)]),
        *_open(devices),
        *(
            _rule([*_to(name_server), *_is_protocol(protocol), *to_dns, _verdict(_ACCEPT)])
            for protocol in (socket.IPPROTO_UDP, socket.IPPROTO_TCP)
        ),
        *_set(networks),
        _rule([*_to_set(), _REJECT]),
    ]
    return _batch(made, replaces=replaces)


def _batch(made: list[_Made], *, replaces: bool) -> tuple[bytes, int]:
    table: _Made = (_NEW_TABLE, 0, [(1, _TABLE), (2, 0)])
    # It may be missing, and can be removed in any case once it was added.
    made = [*([table, (_DELETE_TABLE, 0, [(1, _TABLE)])] if replaces else []), table, *made]
    last = len(made)
    parts = [_message(_BATCH_BEGIN, 0, 0, b"", family=0, group=_SUBSYSTEM)]
    for number, (kind, flags, values) in enumerate(made, 1):
        parts.append(_message(kind, flags | (ACK if number == last else 0), number, attributes(values)))
    parts.append(_message(_BATCH_END, 0, last + 1, b"", family=0, group=_SUBSYSTEM))
    return b"".join(parts), last


def _message(kind: int, flags: int, number: int, body: bytes, *, family: int = _INET, group: int = 0) -> bytes:
    return netlink.message(kind, flags, number, struct.pack("!BBH", family, 0, group) + body)


def _chain(name: bytes, kind: bytes, priority: int) -> _Made:
    hook: Value = [(1, _OUTPUT_HOOK), (2, priority)]
    return _NEW_CHAIN, CREATE, [(1, _TABLE), (3, name), (7, kind), (5, _ACCEPT), (4, hook)]


def _rule(expressions: list[tuple[int, Value]], chain: bytes = _CHAIN) -> _Made:
    return _NEW_RULE, CREATE | APPEND, [(1, _TABLE), (2, chain), (4, expressions)]


def _open(devices: Iterable[str], chain: bytes = _CHAIN) -> list[_Made]:
    return [_rule([*_is(_DEVICE, name.encode().ljust(16, b"\0")), _verdict(_ACCEPT)], chain) for name in devices]


def _set(networks: Iterable[str]) -> list[_Made]:
    elements = _elements(networks)
    kind: list[tuple[int, Value]] = [(3, _ANONYMOUS_CONSTANT_INTERVALS), (4, _IPV4_TYPE), (5, 4), (10, 1)]
    return [
        (_NEW_SET, CREATE, [(1, _TABLE), (2, _SET), *kind, (9, [(1, len(elements))])]),
        (_NEW_ELEMENTS, CREATE, [(1, _TABLE), (2, _SET), (4, 1), (3, elements)]),
    ]


def _to_set() -> list[tuple[int, Value]]:
    """Match packets to the networks of the set."""
    return [
        *_is(_FAMILY, bytes([socket.AF_INET])),
        _expression(b"payload", [(1, 1), (2, _NETWORK), (3, 16), (4, 4)]),
        _expression(b"lookup", [(2, 1), (1, _SET), (4, 1)]),
    ]


def _to(address: str) -> list[tuple[int, Value]]:
    return [*_is(_FAMILY, bytes([socket.AF_INET])), *_at(_NETWORK, 16, 4, socket.inet_aton(address))]


def _is_protocol(number: int) -> list[tuple[int, Value]]:
    return _is(_PROTOCOL, bytes([number]))


def _redirect(port: int) -> list[tuple[int, Value]]:
    """Lead a connection to a port of the loopback device."""
    value: Value = [(1, struct.pack("!H", port))]
    return [_expression(b"immediate", [(1, 1), (2, value)]), _expression(b"redir", [(1, 1)])]


def _expression(name: bytes, data: list[tuple[int, Value]]) -> tuple[int, Value]:
    return 1, [(1, name + b"\0"), (2, data)]


def _is(key: int, value: bytes) -> list[tuple[int, Value]]:
    """Match what the kernel knows of a packet."""
    return [_expression(b"meta", [(2, key), (1, 1)]), _equals(value)]


def _at(header: int, offset: int, size: int, value: bytes) -> list[tuple[int, Value]]:
    """Match bytes of a header."""
    return [_expression(b"payload", [(1, 1), (2, header), (3, offset), (4, size)]), _equals(value)]


def _equals(value: bytes) -> tuple[int, Value]:
    return _expression(b"cmp", [(1, 1), (2, _EQUAL), (3, [(1, value)])])


def _verdict(code: int) -> tuple[int, Value]:
    return _expression(b"immediate", [(1, 0), (2, [(2, [(1, code)])])])


def _elements(networks: Iterable[str]) -> list[tuple[int, Value]]:
    """Return the networks as intervals: a start, and an end that is no part of it."""
    intervals: list[list[int]] = []
    for first, size in sorted(map(_interval, networks)):
        if intervals and intervals[-1][1] == first:
            intervals[-1][1] = first + size
        else:
            intervals.append([first, first + size])
    edges: dict[int, bool] = {0: True}
    for first, end in intervals:
        edges[first] = False
        edges[end] = True
    edges.pop(1 << 32, None)
    return [
        (number, [*([(3, _ENDS)] if ends else []), (1, [(1, struct.pack("!I", place))])])
        for number, (place, ends) in enumerate(edges.items(), 1)
    ]


def _interval(network: str) -> tuple[int, int]:
    address, _, bits = network.partition("/")
    return int.from_bytes(socket.inet_aton(address)), 1 << 32 - int(bits)
