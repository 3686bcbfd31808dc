"""The packet filter of a sandbox's network namespace, by nftables: no process inside can see or change its rules.

Routes would not suffice: a program that names a device (SO_BINDTODEVICE) bypasses them. The rules are those of
:data:`RULES` or :data:`LISTED_RULES`, as messages to the kernel: libnftables would take a hundred times as long for
each sandbox.

Source: nft(8), the kernel's linux/netfilter/nf_tables.h and nfnetlink.h.
"""

import fcntl
import functools
import itertools
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

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
{to_ipv6}  }}
  chain output {{
    type filter hook output priority 0; policy accept;
    oifname "lo" accept
{all_ipv6}{devices}    ct status dnat accept
    meta nfproto ipv4 reject
  }}
}}
"""
"""Who may be reached is reached by a proxy, whose sockets have the ports; every other packet is refused."""
NO_IPV6 = "    meta nfproto ipv6 drop\n"
"""``all_ipv6`` of a list without entries of IPv6, which has no ``to_ipv6``."""
TO_IPV6 = "    meta l4proto tcp ip6 daddr {{ {networks} }} redirect to :{port}\n"
OTHER_IPV6 = "    meta nfproto ipv6 ct status dnat accept\n    meta nfproto ipv6 reject\n"
"""Those of a list with such entries."""
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
_ELEMENTS_AT_ONCE = 512
"""An attribute has at most 64 KiB, and an element 44 bytes."""
_ANONYMOUS_CONSTANT_INTERVALS, _ENDS = 7, 1
_DNS = 53
type _Made = tuple[int, int, list[tuple[int, Value]]]
"""A message: its kind, its flags and its attributes."""


class _Family(NamedTuple):
    """A version of the Internet Protocol."""

    number: int
    size: int
    """Bytes of an address."""

    destination: int
    """Where a packet's header has it."""

    port_unreachable: int
    """A code of its ICMP."""

    kind: int
    """That of the addresses in a set."""

    set_id: int
    """In a batch, of the set of such addresses."""


_IPV4 = _Family(socket.AF_INET, 4, 16, port_unreachable=3, kind=7, set_id=1)
_IPV6 = _Family(socket.AF_INET6, 16, 24, port_unreachable=4, kind=8, set_id=2)


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
    queries_port: int,
    connections_port: int,
    ipv6_port: int = 0,
    *,
    devices: Iterable[str] = (),
) -> None:
    """Lead connections of this network namespace to some networks to a proxy, in place of any rules before.

    Every other packet is refused, but those to the name server's port 53, which the proxy answers.

    Args:
        networks: As ``a.b.c.d/n``, or IPv6; none contains another.
        name_server: An address.
        queries_port: The proxy's own for queries, on this network namespace's loopback device.
        connections_port: Its own for connections.
        ipv6_port: Its own for connections to the networks of IPv6.
        devices: As for :func:`close_networks`.

    Raises:
        OSError: The kernel refuses.
    """
    to_dns = [*_to(name_server), *_at(_TRANSPORT, 2, 2, struct.pack("!H", _DNS))]
    ipv4 = [network for network in networks if ":" not in network]
    ipv6 = [network for network in networks if ":" in network]
    is_redirected = [
        _expression(b"ct", [(2, _STATUS), (1, 1)]),
        _expression(b"bitwise", [(1, 1), (2, 1), (3, 4), (4, [(1, _REDIRECTED)]), (5, [(1, bytes(4))])]),
        _expression(b"cmp", [(1, 1), (2, _NOT_EQUAL), (3, [(1, bytes(4))])]),
    ]
    made = [
        _chain(_LISTED, b"nat\0", _BEFORE_FILTERS),
        _rule([*_is(_DEVICE, _LOOPBACK), _verdict(_ACCEPT)], _LISTED),
        *_open(devices, _LISTED),
        _rule([*_is_protocol(socket.IPPROTO_UDP), *to_dns, *_redirect(queries_port)], _LISTED),
        _rule([*_is_protocol(socket.IPPROTO_TCP), *to_dns, *_redirect(connections_port)], _LISTED),
        *_lead(ipv4, _IPV4, connections_port),
        *(_lead(ipv6, _IPV6, ipv6_port) if ipv6 else []),
        _chain(_CHAIN, b"filter\0", 0),
        _rule([*_is(_DEVICE, _LOOPBACK), _verdict(_ACCEPT)]),
        *([_rule([*_of(_IPV6), *is_redirected, _verdict(_ACCEPT)])] if ipv6 else []),
        _rule([*_of(_IPV6), _reject(_IPV6) if ipv6 else _verdict(_DROP)]),
        *_open(devices),
        _rule([*is_redirected, _verdict(_ACCEPT)]),
        _rule([*_of(_IPV4), _reject(_IPV4)]),
    ]
    what = "no packet filter for the allowlist (which needs nftables with nat, redirect and connection tracking)"
    netlink.send(_NETLINK_NETFILTER, *_batch(made, replaces=True), what)


def _lead(networks: Iterable[str], family: _Family, port: int) -> list[_Made]:
    to_port = [*_is_protocol(socket.IPPROTO_TCP), *_to_set(family), *_redirect(port)]
    return [*_set(networks, family), _rule(to_port, _LISTED)]


@functools.cache
def messages(
    networks: tuple[str, ...], name_server: str, devices: tuple[str, ...] = (), *, replaces: bool = False
) -> tuple[bytes, int]:
    """Return the messages to the kernel, and the number of the one that is answered after the whole."""
    to_dns = _at(_TRANSPORT, 2, 2, struct.pack("!H", _DNS))
    made = [
        _chain(_CHAIN, b"filter\0", 0),
        _rule([*_is(_DEVICE, _LOOPBACK), _verdict(_ACCEPT)]),
        _rule([*_of(_IPV6), _verdict(_DROP)]),
        *_open(devices),
        *(
            _rule([*_to(name_server), *_is_protocol(protocol), *to_dns, _verdict(_ACCEPT)])
            for protocol in (socket.IPPROTO_UDP, socket.IPPROTO_TCP)
        ),
        *_set(networks, _IPV4),
        _rule([*_to_set(_IPV4), _reject(_IPV4)]),
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


def _set(networks: Iterable[str], family: _Family) -> list[_Made]:
    elements = _elements(networks, family)
    form: list[tuple[int, Value]] = [(3, _ANONYMOUS_CONSTANT_INTERVALS), (4, family.kind), (5, family.size)]
    return [
        (_NEW_SET, CREATE, [(1, _TABLE), (2, _SET), *form, (10, family.set_id), (9, [(1, len(elements))])]),
        *(
            (_NEW_ELEMENTS, CREATE, [(1, _TABLE), (2, _SET), (4, family.set_id), (3, list(some))])
            for some in itertools.batched(elements, _ELEMENTS_AT_ONCE)
        ),
    ]


def _to_set(family: _Family) -> list[tuple[int, Value]]:
    """Match packets to the networks of the set."""
    return [
        *_of(family),
        _expression(b"payload", [(1, 1), (2, _NETWORK), (3, family.destination), (4, family.size)]),
        _expression(b"lookup", [(2, 1), (1, _SET), (4, family.set_id)]),
    ]


def _to(address: str) -> list[tuple[int, Value]]:
    return [*_of(_IPV4), *_at(_NETWORK, _IPV4.destination, _IPV4.size, socket.inet_aton(address))]


def _of(family: _Family) -> list[tuple[int, Value]]:
    return _is(_FAMILY, bytes([family.number]))


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


def _reject(family: _Family) -> tuple[int, Value]:
    return _expression(b"reject", [(1, 0), (2, bytes([family.port_unreachable]))])


def _verdict(code: int) -> tuple[int, Value]:
    return _expression(b"immediate", [(1, 0), (2, [(2, [(1, code)])])])


def _elements(networks: Iterable[str], family: _Family) -> list[tuple[int, Value]]:
    """Return the networks as intervals: a start, and an end that is no part of it."""
    intervals: list[list[int]] = []
    for first, size in sorted(_interval(network, family) for network in networks):
        if intervals and intervals[-1][1] == first:
            intervals[-1][1] = first + size
        else:
            intervals.append([first, first + size])
    edges: dict[int, bool] = {0: True}
    for first, end in intervals:
        edges[first] = False
        edges[end] = True
    edges.pop(1 << 8 * family.size, None)
    return [
        (number, [*([(3, _ENDS)] if ends else []), (1, [(1, place.to_bytes(family.size))])])
        for number, (place, ends) in enumerate(edges.items(), 1)
    ]


def _interval(network: str, family: _Family) -> tuple[int, int]:
    address, _, bits = network.partition("/")
    return int.from_bytes(socket.inet_pton(family.number, address)), 1 << 8 * family.size - int(bits)
