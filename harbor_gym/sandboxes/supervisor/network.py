"""The addresses that a sandbox with a public network may reach, and the programs for such a network."""

from __future__ import annotations

import functools
import ipaddress
import re
from pathlib import Path

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
    return tuple(map(str, ipaddress.collapse_addresses(map(ipaddress.IPv4Network, closed))))


@functools.cache
def own_addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses without loopback's, each as a /32 network. Cached at the first call."""
    text = Path("/proc/net/fib_trie").read_text(encoding="utf-8")
    found = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", text)
    return tuple(sorted({f"{address}/32" for address in found if not address.startswith("127.")}))
