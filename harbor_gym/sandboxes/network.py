"""What a sandbox with a public network may reach, and the program that gives it one."""

from __future__ import annotations

import functools
import re
from pathlib import Path

NETWORK_PROGRAM = "slirp4netns"
NAME_SERVER = "10.0.2.3"
"""Where slirp4netns answers for the machine's own resolver."""

_LINK_LOCAL = "169.254.0.0/16"
"""Where clouds keep their metadata, credentials among them. Never reachable."""
_PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")


def closed_networks(*, has_private: bool) -> list[str]:
    """Return the IPv4 networks that a sandbox with a public network must not reach.

    Args:
        has_private: Leave the private networks and this machine's own addresses open.
    """
    return [_LINK_LOCAL] if has_private else [_LINK_LOCAL, *_PRIVATE, *own_addresses()]


@functools.cache
def own_addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses but loopback's, each as a network of one, as they were at the first call."""
    text = Path("/proc/net/fib_trie").read_text()
    found = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL", text)
    return tuple(sorted({f"{address}/32" for address in found if not address.startswith("127.")}))
