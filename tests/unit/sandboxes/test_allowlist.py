"""What an allowlist's entries match, what its resolver answers, and what is read of a connection's first bytes."""

import ipaddress
import json
import subprocess
import sys

import pytest
from harbor.models.task.config import PhaseNetworkPolicyConfig

from harbor_gym.errors import TaskError
from harbor_gym.sandboxes.supervisor.network import allowlist, closed_networks
from harbor_gym.sandboxes.supervisor.program.messages import POOL
from tests.helpers.sandboxes.program import run_in_program

_ENTRIES = ["Example.COM.", "*.wild.org", "a.deep.wild.org", "xn--bcher-kva.example"]
_MATCHES = {
    "example.com": True,
    "EXAMPLE.com": True,
    "example.com.": True,
    "example.com..": False,
    "www.example.com": False,
    "notexample.com": False,
    "example.com.evil.org": False,
    "com": False,
    "": False,
    ".": False,
    "wild.org": False,
    "x.wild.org": True,
    "y.x.wild.org": True,
    "a.deep.wild.org": True,
    "xwild.org": False,
    ".wild.org": False,
    "x..wild.org": False,
    "*.wild.org": False,
    "x\0.wild.org": False,
    "evil.org/.wild.org": False,
    "evil.org:80#.wild.org": False,
    "ex\u0430mple.com": False,
    "b\u00fccher.example": False,
    "xn--bcher-kva.example": True,
    "203.0.113.5": False,
    f"{'x' * 300}.wild.org": False,
}
_MATCH = """
import json, sys
from egress.names import Names, normal
entries, names = json.loads(sys.argv[1])
listed = Names(entries)
print(json.dumps({name: listed.allow(normal(name.encode())) for name in names}))
"""


def _run(code: str, *arguments: object) -> str:
    done = run_in_program(code, *map(json.dumps, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_entries_match_as_harbors_sidecar_has_them_match() -> None:
    hosts = PhaseNetworkPolicyConfig(network_mode="allowlist", allowed_hosts=_ENTRIES).allowed_hosts  # pyright: ignore[reportArgumentType]  # as in a file
    assert json.loads(_run(_MATCH, [hosts, list(_MATCHES)])) == _MATCHES


_ANSWER = """
import ipaddress, json, random, struct, sys
from egress.names import Names, address_of, answer
from messages import POOL
listed = Names(["site.test", "*.wild.test"])

def query(name, kind=1, group=1, flags=0x100, count=1, more=b""):
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".")) if name else b""
    return struct.pack("!6H", 7, flags, count, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, group) + more

def read(given):
    got = answer(given, listed)
    return [got[3] & 15, struct.unpack_from("!H", got, 6)[0]] if got else None

pool = ipaddress.ip_network(POOL)
assert all(ipaddress.ip_address(address_of(str(n))) in pool for n in range(1000))
assert len({address_of(f"name{n}") for n in range(1000)}) > 990
got = answer(query(b"SiTe.TeSt"), listed)
assert got[12:12 + 15] == query(b"SiTe.TeSt")[12:12 + 15], "the question comes back as it was, capitals too"
assert got[-4:] == address_of("site.test")
print(json.dumps([
    read(query(b"site.test")), read(query(b"site.test", more=bytes(11))), read(query(b"site.test", 28)),
    read(query(b"site.test", 65)), read(query(b"site.test", 16)), read(query(b"site.test", 255)),
    read(query(b"site.test", 1, 3)), read(query(b"x.wild.test")), read(query(b"wild.test")), read(query(b"evil.test")),
    read(query(b"")), read(query(b"x.evil.test", 16)), read(query(b"site.test", flags=0x8100)),
    read(query(b"site.test", flags=0x2800)), read(query(b"site.test", count=2)), read(query(b"site.test")[:-1]),
    read(b""), read(b"\\0" * 12), read(query(b"site.test")[:12] + b"\\xc0\\x0c\\0\\1\\0\\1"),
]))
random.seed(7)
for _ in range(20000):
    broken = bytearray(query(random.choice([b"site.test", b"a.b.wild.test", b"evil.test"])))
    for _ in range(random.randrange(4)):
        broken[random.randrange(len(broken))] = random.randrange(256)
    answer(bytes(broken[:random.randrange(len(broken) + 1)]), listed)
"""


def test_the_resolver_knows_listed_names_alone_and_takes_anything() -> None:
    address, nothing, unknown = [0, 1], [0, 0], [3, 0]
    assert json.loads(_run(_ANSWER)) == [
        *(address, address, nothing, nothing, nothing, address),  # EDNS; AAAA, HTTPS, TXT, ANY
        *(nothing, address, unknown, unknown),  # CHAOS
        *(unknown, unknown, None, None, None, None),  # the root; an answer, an update, two questions, one cut short
        *(None, None, None),
    ]


_FUZZ = """
import random, ssl
from egress.first_bytes import RefusedError, head_of, is_http, is_tls, server_name

def hello(name):
    outgoing = ssl.MemoryBIO()
    tls = ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()

whole = hello("Site.Test")
assert is_tls(whole) and server_name(whole) == "site.test"
assert all(server_name(whole[:size]) is None for size in range(len(whole)))
random.seed(7)
names = set()
for _ in range(20000):
    broken = bytearray(whole)
    for _ in range(random.randrange(1, 4)):
        broken[random.randrange(len(broken))] = random.randrange(256)
    try:
        names.add(server_name(bytes(broken)))
    except RefusedError:
        pass
assert "site.test" in names and None in names
head = b"POST /a HTTP/1.1\\r\\nHost: Site.Test:80\\r\\nContent-Length: 5\\r\\nX: y\\r\\n\\r\\n"
assert head_of(head) == ("site.test", 5, False, "")
for _ in range(20000):
    broken = bytearray(head)
    for _ in range(random.randrange(1, 4)):
        broken[random.randrange(len(broken))] = random.randrange(256)
    try:
        head_of(bytes(broken))
    except RefusedError:
        pass
assert all(is_http(head[:size]) for size in range(1, 30))
print("done")
"""


def test_whatever_comes_first_is_read_or_refused() -> None:
    assert _run(_FUZZ) == "done\n"


def test_no_network_of_a_list_has_a_part_that_is_closed() -> None:
    for has_private in (True, False):
        closed = list(map(ipaddress.IPv4Network, (*closed_networks(has_private=has_private), POOL)))
        everything = allowlist(["128.0.0.0/1", "1.1.1.1"], has_private=has_private)
        found = [ipaddress.IPv4Network(network) for network in everything.networks]
        assert not any(one.overlaps(other) for one in found for other in closed)
        size = sum(network.num_addresses for network in found)
        gone = sum(one.num_addresses for one in closed if one.subnet_of(ipaddress.IPv4Network("128.0.0.0/1")))
        assert size == (1 << 31) + 1 - gone, "all else is open"


_CLOSED_IPV6 = ("::1", "::", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::",
                "2001::1", "2002:a00:1::1", "fe80::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe",
                "fd00:42::42")  # fmt: skip
_OPEN_IPV6 = ("2001:db8::1", "2001:1::1", "2606:4700::1111", "2000::", "3fff::1")
_PRIVATE_IPV6 = ("fd12::3", "fc00::1", "fec0::1")


def test_no_ipv6_network_of_a_list_has_a_part_that_is_closed() -> None:
    for has_private in (True, False):
        networks = list(map(ipaddress.ip_network, allowlist(["::/0"], has_private=has_private).networks))
        found = {
            address: any(ipaddress.ip_address(address) in network for network in networks)
            for address in (*_CLOSED_IPV6, *_OPEN_IPV6, *_PRIVATE_IPV6)
        }
        assert found == {
            **dict.fromkeys(_CLOSED_IPV6, False),
            **dict.fromkeys(_OPEN_IPV6, True),
            **dict.fromkeys(_PRIVATE_IPV6, has_private),
        }
        for address in (*_CLOSED_IPV6[1:], *([] if has_private else _PRIVATE_IPV6)):
            entry = PhaseNetworkPolicyConfig(network_mode="allowlist", allowed_hosts=[address]).allowed_hosts  # pyright: ignore[reportArgumentType]  # as in a file
            with pytest.raises(TaskError, match="which no sandbox may reach"):
                allowlist(entry or [], has_private=has_private)


_LIST_WITHOUT_IPV6 = """
from harbor_gym.sandboxes.supervisor.network import allowlist
print(allowlist(["b.org", "203.0.113.9"], has_private=True).networks)
allowlist(["b.org", "2001:db8::/32"], has_private=True)
"""


def test_a_kernel_without_ipv6_is_named() -> None:
    hide = 'mount -t tmpfs none /proc/sys/net/ipv6 && exec "$@"'
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", _LIST_WITHOUT_IPV6]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "('203.0.113.9/32',)\n"
    assert "TaskError: allowed_hosts has 2001:db8::/32, but this machine's kernel has no IPv6" in done.stderr


def test_entries_become_names_and_networks() -> None:
    made = allowlist(["b.org", "203.0.113.9", "*.c.org", "203.0.113.8", "127.0.0.1"], has_private=False)
    assert made == (("b.org", "*.c.org"), ("203.0.113.8/31",))
    made = allowlist(["2001:db8::1", "b.org", "2001:db8::", "203.0.113.9", "::1"], has_private=False)
    assert made == (("b.org",), ("203.0.113.9/32", "2001:db8::/127"))
    with pytest.raises(TaskError, match=r"169\.254\.1\.1, which no sandbox may reach"):
        allowlist(["b.org", "169.254.1.1"], has_private=True)
    with pytest.raises(TaskError, match=f"198.18.0.7, which no sandbox may reach: .* and {POOL} never"):
        allowlist(["198.18.0.7"], has_private=True)
