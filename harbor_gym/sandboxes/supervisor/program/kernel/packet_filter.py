"""The packet filter of a sandbox's network namespace, by nftables: no process inside can see or change its rules.

Routes would not suffice: a program that names a device (SO_BINDTODEVICE) bypasses them.

Source: nft(8), libnftables(3).
"""

import ctypes
import fcntl
import functools
import socket
import struct
from collections.abc import Iterable
from typing import Any

LIBRARY = "libnftables.so.1"
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
_RULES = """\
table inet harbor_gym {{
  chain output {{
    type filter hook output priority 0; policy accept;
    oifname "lo" accept
    meta nfproto ipv6 drop
    ip daddr {name_server} udp dport 53 accept
    ip daddr {name_server} tcp dport 53 accept
    ip daddr {{ {closed} }} reject
  }}
}}
"""


def raise_loopback() -> None:
    """Switch on this network namespace's loopback device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))


@functools.cache
def load() -> Any:
    """Load libnftables. Called before forks, it saves the work in each child.

    Raises:
        OSError: It is missing.
    """
    library = ctypes.CDLL(LIBRARY)
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    return library


def close_networks(networks: Iterable[str], name_server: str) -> None:
    """Block packets of this network namespace to some networks, on any route, and all IPv6.

    Args:
        networks: As ``a.b.c.d/n``; none contains another.
        name_server: An address in them whose port 53 stays open.

    Raises:
        OSError: libnftables is missing, or the kernel refuses.
    """
    library = load()
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    try:
        library.nft_ctx_buffer_error(context)
        rules = _RULES.format(closed=", ".join(networks), name_server=name_server)
        if library.nft_run_cmd_from_buffer(context, rules.encode()) != 0:
            output = (library.nft_ctx_get_error_buffer(context) or b"").decode("utf-8", "replace").strip()
            raise OSError(f"no packet filter for the network: {output}")
    finally:
        library.nft_ctx_free(context)
