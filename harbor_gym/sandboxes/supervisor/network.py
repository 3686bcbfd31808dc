"""The addresses that a sandbox with a network may reach, and the programs for such a network."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from harbor.models.task.config import NetworkAllowlistEntryType, classify_network_allowlist_entry

from harbor_gym.sandboxes.errors import TaskError
from harbor_gym.sandboxes.supervisor.program.messages import POOL, Allowlist
from harbor_gym.sandboxes.tools import find_program

NETWORK_PROGRAM = "slirp4netns"
NAME_SERVER = "10.0.2.3"
"""The address at which slirp4netns forwards to the machine's own resolver."""

_NEVER = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "168.63.129.16/32",
    "192.0.0.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""This machine, and the addresses of cloud metadata, which include credentials; no task needs these networks."""
_PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
_NEVER_IPV6 = (
    "::/8",  # loopback, and addresses that stand for one of IPv4, which may be closed: mapped, compatible, by NAT64
    "2001::/32",  # Teredo and 6to4: the same
    "2002::/16",
    "fe80::/10",
    "ff00::/8",
    "fd00:ec2::/32",  # cloud metadata of Amazon, Google, Oracle and Scaleway
    "fd20:ce::254/128",
    "fd00:c1::a9fe:a9fe/128",
    "fd00:42::42/128",
)
_PRIVATE_IPV6 = ("fc00::/7", "fec0::/10")
_IPV6_SETTINGS = Path("/proc/sys/net/ipv6/conf")
_LOCAL_ROUTE = 0x80000000
"""RTF_LOCAL of linux/ipv6_route.h."""


@functools.cache
def missing_packages() -> tuple[str, ...]:
    """Return the missing Debian packages that a sandbox with a network needs."""
    return () if find_program(NETWORK_PROGRAM) else (NETWORK_PROGRAM,)


@functools.cache
def closed_networks(*, has_private: bool) -> tuple[str, ...]:
    """Return the IPv4 networks that a sandbox with a public network must not reach; none contains another.

    Cached at the first call, as this machine's addresses are.

    Args:
        has_private: Leave the private networks and this machine's own addresses open.
    """
    closed = _NEVER if has_private else (*_NEVER, *_PRIVATE, *own_addresses())
    return _collapsed(map(IPv4Network, closed))


def allowlist(hosts: Sequence[str], *, has_private: bool) -> Allowlist:
    """Return what a sandbox with this allowlist may reach.

    Args:
        hosts: Entries as Harbor has checked them: host names, ``*.host``, addresses and networks.
        has_private: Leave the private networks and this machine's own addresses open.

    Raises:
        TaskError: An entry has only addresses that no sandbox may reach, or is IPv6, which the kernel lacks.
    """
    kinds = {entry: classify_network_allowlist_entry(entry) for entry in hosts}
    named = NetworkAllowlistEntryType.HOSTNAME, NetworkAllowlistEntryType.WILDCARD_HOSTNAME
    names = tuple(entry for entry, kind in kinds.items() if kind in named)
    numbers = [entry for entry in kinds if entry not in names]
    # At the pool's addresses a sandbox finds names.
    closed = (*closed_networks(has_private=has_private), POOL)
    networks = _open_parts(IPv4Network, [entry for entry in numbers if ":" not in entry], closed, POOL)
    if ipv6 := [entry for entry in numbers if ":" in entry]:
        if not _IPV6_SETTINGS.exists():
            raise TaskError(f"allowed_hosts has {ipv6[0]}, but this machine's kernel has no IPv6")
        closed = _NEVER_IPV6 if has_private else (*_NEVER_IPV6, *_PRIVATE_IPV6, *_own_ipv6_addresses())
        closed = _collapsed(map(IPv6Network, closed))
        networks += _open_parts(IPv6Network, ipv6, closed, "IPv6 that is link-local or stands for IPv4")
    return Allowlist(names, networks)


def _open_parts[Network: (IPv4Network, IPv6Network)](
    kind: type[Network], entries: Iterable[str], closed: Iterable[str], never: str
) -> tuple[str, ...]:
    without = [kind(network) for network in closed]
    parts: list[Network] = []
    for entry in entries:
        network = kind(entry)
        found = _without(network, without)
        if not found and not network.is_loopback:  # the sandbox's own loopback is open without a list
            raise TaskError(
                f"allowed_hosts has {entry}, which no sandbox may reach: private networks and this machine's own "
                f"addresses are open with the sandbox option private_network=true, cloud metadata and {never} never"
            )
        parts += found
    return _collapsed(parts)


def _without[Network: (IPv4Network, IPv6Network)](network: Network, closed: Iterable[Network]) -> list[Network]:
    """Return the parts of a network that are not closed."""
    parts = [network]
    for one in closed:
        parts = [
            left
            for part in parts
            for left in (
                [] if part.subnet_of(one) else part.address_exclude(one) if one.subnet_of(part) else [part]
            )
        ]  # fmt: skip
    return parts


def _collapsed[Network: (IPv4Network, IPv6Network)](networks: Iterable[Network]) -> tuple[str, ...]:
    return tuple(map(str, ipaddress.collapse_addresses(networks)))


@functools.cache
def own_addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses without loopback's, each as a /32 network. Cached at the first call."""
    text = Path("/proc/net/fib_trie").read_text(encoding="utf-8")
    found = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", text)
    return tuple(sorted({f"{address}/32" for address in found if not address.startswith("127.")}))


def _own_ipv6_addresses() -> list[str]:
    """Return this machine's IPv6 addresses, as /128 networks, as they are now."""
    rows = [line.split() for line in Path("/proc/net/ipv6_route").read_text(encoding="utf-8").splitlines()]
    return [
        str(IPv6Network(bytes.fromhex(row[0]))) for row in rows if row[1] == "80" and int(row[8], 16) & _LOCAL_ROUTE
    ]
