"""Which networks a sandbox with a public network must not reach: this machine's own addresses among them."""

import json
import subprocess
import sys

import pytest

from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.sandboxes.supervisor.network import NAME_SERVER, closed_networks
from tests.helpers.sandboxes.program import run_in_program

pytestmark = pytest.mark.local

_LOOK = """
import fcntl, json, os, socket, struct
os.unshare(os.CLONE_NEWNET | (os.CLONE_NEWUSER if {rootless} else 0))
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    def set(request, name, value):
        fcntl.ioctl(any_socket, request, struct.pack("16s16s", name, value))
    set(SIOCSIFFLAGS, b"lo", struct.pack("h", IFF_UP))
    for name, address in ((b"lo:1", "203.0.113.7"), (b"lo:2", "198.51.100.9")):
        set(SIOCSIFADDR, name, struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address)))
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as any_socket:
    own = socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    fcntl.ioctl(any_socket, SIOCSIFADDR, own + struct.pack("Ii", 64, socket.if_nametoindex("lo")))
from harbor_gym.sandboxes.supervisor.network import allowlist, closed_networks
print(json.dumps([closed_networks(has_private=has_private) for has_private in (False, True)]))
print(json.dumps([allowlist(["2001:db8::6/127"], has_private=has_private).networks for has_private in (False, True)]))
"""
"""Looks in a network namespace of its own, where a machine's addresses can be made up."""


def test_the_machines_own_addresses_are_closed_unless_private_networks_are_open() -> None:
    code = _LOOK.format(rootless=is_rootless())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (closed, with_private), open_ipv6 = map(json.loads, done.stdout.splitlines())
    assert open_ipv6 == [["2001:db8::6/128"], ["2001:db8::6/127"]]
    own = {"203.0.113.7/32", "198.51.100.9/32"}
    assert own <= set(closed)
    assert not own & set(with_private)
    # The machine's; the sandbox's own loopback takes no part in the packet filter.
    assert "127.0.0.0/8" in closed
    assert "127.0.0.0/8" in with_private


def test_metadata_addresses_are_always_closed() -> None:
    for has_private in (True, False):
        closed = set(closed_networks(has_private=has_private))
        assert {"169.254.0.0/16", "168.63.129.16/32", "192.0.0.0/24"} <= closed
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"} <= set(closed_networks(has_private=False))
    assert "10.0.0.0/8" not in closed_networks(has_private=True)


_LIST = """
import ctypes, os, sys
from kernel import packet_filter
library = ctypes.CDLL("libnftables.so.1")
library.nft_ctx_new.restype = ctypes.c_void_p
library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
name_server, *networks = sys.argv[1:]

def listed(close):
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    context = ctypes.c_void_p(library.nft_ctx_new(0))  # not before, as it keeps the network namespace that it begins in
    close(context)
    library.nft_ctx_buffer_output(context)
    library.nft_run_cmd_from_buffer(context, b"list ruleset")
    print(library.nft_ctx_get_output_buffer(context).decode() + "---", flush=True)
    os._exit(0)

def change(context):
    packet_filter.close_networks(["203.0.113.0/24"], name_server)
    packet_filter.allow_networks(networks, name_server, 5353, 1234, devices=["eth0", "eth1"])

def change_again(context):
    change(context)
    packet_filter.allow_networks([*networks, *ipv6], name_server, 5353, 1234, 1236, devices=["eth0", "eth1"])

def change_back(context):
    change(context)
    packet_filter.close_networks(networks, name_server, devices=["eth0", "eth1"], replaces=True)

devices = "".join(packet_filter.DEVICE_RULE.format(device=name) for name in ("eth0", "eth1"))
rules = packet_filter.RULES.format(closed=", ".join(networks), name_server=name_server, devices=devices)
ipv6 = ["100::/8", "2001:db8::7/128", "8000::/1"]

def of_list(to_ipv6, all_ipv6):
    return packet_filter.LISTED_RULES.format(
        networks=", ".join(networks), name_server=name_server, connections_port=1234, queries_port=5353,
        devices=devices, to_ipv6=to_ipv6, all_ipv6=all_ipv6).encode()

to_ipv6 = packet_filter.TO_IPV6.format(networks=", ".join(ipv6), port=1236)
listed(lambda _: packet_filter.close_networks(networks, name_server, devices=["eth0", "eth1"]))
listed(change_back)
listed(lambda context: library.nft_run_cmd_from_buffer(context, rules.encode()))
listed(change)
listed(lambda context: library.nft_run_cmd_from_buffer(context, of_list("", packet_filter.NO_IPV6)))
listed(change_again)
listed(lambda context: library.nft_run_cmd_from_buffer(context, of_list(to_ipv6, packet_filter.OTHER_IPV6)))
"""


MANY = tuple(f"203.{number >> 8}.{number & 255}.0/25" for number in range(2000))
"""More than one message to the kernel can hold."""


@pytest.mark.parametrize(
    "networks",
    [closed_networks(has_private=False), closed_networks(has_private=True), ("10.0.0.0/9", "10.128.0.0/9"), MANY],
    ids=["closed", "private", "adjacent", "many"],
)
def test_the_kernel_gets_the_rules_as_from_libnftables(networks: tuple[str, ...]) -> None:
    done = run_in_program(_LIST, NAME_SERVER, *networks)
    assert done.returncode == 0, done.stderr
    ours, again, theirs, our_list, their_list, our_ipv6, their_ipv6, _ = done.stdout.split("---\n")
    assert "reject" in ours
    assert ours == again == theirs
    assert "redirect to :1234" in our_list
    assert our_list == their_list
    assert "redirect to :1236" in our_ipv6
    assert our_ipv6 == their_ipv6


def test_a_packet_filter_that_the_kernel_refuses_is_an_error() -> None:
    code = "from kernel import packet_filter\npacket_filter.close_networks(['10.0.0.0/8'], '10.0.2.3')"
    done = run_in_program(f"import os\nos.unshare(os.CLONE_NEWUSER)\n{code}")  # the machine's network namespace
    assert "no packet filter for the network: Operation not permitted" in done.stderr
    code = "from kernel import packet_filter\npacket_filter.allow_networks(['203.0.113.0/24'], '10.0.2.3', 1, 2)"
    done = run_in_program(f"import os\nos.unshare(os.CLONE_NEWUSER)\n{code}")
    assert "no packet filter for the allowlist (which needs nftables with nat" in done.stderr
