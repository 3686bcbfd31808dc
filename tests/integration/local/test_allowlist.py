"""What a local sandbox with an allowlist reaches: of an internet of the test's own, whose every address answers.

The internet and the attacks are in tests/helpers: internet.py, hostile/listed.py, hostile/attackers/listed.py.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import NetworkPolicy

from harbor_gym.errors import SandboxError, TaskError
from tests.helpers.bases import ensure_base_tar
from tests.helpers.hostile import first_words
from tests.helpers.hostile.first_words import DEVICES, PUBLIC
from tests.helpers.hostile.listed import listed
from tests.helpers.internet import EVIL, LISTED, LISTED6, SITE
from tests.helpers.rootless import rootless_user, run_as
from tests.helpers.sandboxes.local import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

_SITE_NAMES = ("site.test", "SITE.test.", "a.b.wild.test")
_NO_NAMES = ("wild.test", "other.test", "notsite.test", "x.site.test", "xwild.test", "evil.test",
             "secret-data.evil.test", "localhost.localdomain")  # fmt: skip
_RESET = (
    # a listed name that leads to an address which no sandbox may reach, or nowhere
    *(f"{name} 0" for name in ("private", "metadata", "loop", "here", "gone")), "rebinding 1",
    # at a listed name's address, for another name
    *(f"Host {host}" for host in ("other.test", "evil.test", "wild.test", EVIL, "site.test.evil.test",
                                  "evil.test:site.test", "")),
    "TLS for another", "TLS for another in small records", "TLS for nobody", "a later request for another",
    # what two programs could read differently
    "two Hosts", "a folded Host", "a space before the colon", "a lone line feed", "a lone carriage return",
    "two lengths", "a length and chunks", "another coding", "a length of letters", "an absolute target",
    "a bad chunk", "another at the end of chunks", "a line before", "a small method", "an endless head",
    # neither TLS nor HTTP/1
    "HTTP/2 in clear", "a tunnel", "HTTP/2", "HTTP/0.9", "no Host", "SSH", "bytes", "no ClientHello",
    "a ClientHello without an end", "a head that never ends",
    "the proxy's own port 0",
)  # fmt: skip
_REFUSED = ("ECONNREFUSED", (
    *(f"by address {address}" for address in (SITE, EVIL, "203.0.113.144", "10.1.2.3", "169.254.169.254", "10.0.2.2",
                                              "10.0.2.100")),
    "TLS of a listed name at another's address",
))  # fmt: skip
_FORBIDDEN = ("EPERM", (
    *(f"datagram to {whose} address" for whose in ("a listed", "another", "a resolver's", "a listed name's")),
    "by device", "a raw packet", "another's mark", "the packet filter's end", "a route", "the device's end",
))  # fmt: skip


def _page(address: str, host: str, size: int = 0) -> list[object]:
    return ["200", address, host, None, size]


_EXPECTED = {
    **{f"resolve {name}": True for name in _SITE_NAMES},
    **{f"resolve {name}": "no such name" for name in _NO_NAMES},
    "a listed name": _page(SITE, "site.test"),
    "a listed name in capitals": _page(SITE, "Site.TEST.:80"),
    "a name below a wildcard": _page(SITE, "a.b.wild.test"),
    "a listed name's alias": _page(EVIL, "alias.test"),
    "in chunks": _page(SITE, "site.test", 6),
    "a long body": _page(SITE, "site.test", 3_000_000),
    **{f"a changing name, {turn}": _page(f"203.0.113.{20 + turn % 2}", "changing.test") for turn in range(3)},
    "rebinding 0": _page("203.0.113.20", "rebinding.test"),
    "two requests": 2,
    "WebSocket": "frame",
    "TLS": [SITE, "site.test", "site.test"],
    "TLS in small records": [SITE, "site.test", "site.test"],
    "TLS, another inside": [SITE, "other.test", "site.test"],  # what can't be seen without decrypting
    f"listed {LISTED}": "hello",
    "listed 203.0.113.130": "hello",
    "an end of one direction": "hello again",
    **dict.fromkeys(_RESET, "reset"),
    **{name: result for result, names in (_REFUSED, _FORBIDDEN) for name in names},
    "a page that leads away": "no such name",
    "other records": [0, 0],
    "data in a query": [3, 0],
    "data below a listed name": [3, 0],
    "a query in a stream": [0, 1],
    "frames": "EAFNOSUPPORT",
    "IPv6": "ENETUNREACH",
    "processes": [],
}
_LISTED6 = (LISTED6, "2001:db8:2::82", "2003::5", "100::5")
_REFUSED6 = (
    ("ENETUNREACH", (
        *(f"outside {address}" for address in ("2001:db8:1::31", "2001:db8:2:1::90", "2001:db8:ffff::")),
        *(f"closed {address}" for address in ("64:ff9b::cb00:711e", "::203.0.113.30", "::ffff:0:203.0.113.30",
                                              "2002:cb00:711e::1", "fd12::3", "fd00:ec2::254", "fd20:ce::254",
                                              "fec0::5")),
        *(f"by scope {address}" for address in ("fe80::1", "fe80::fe", "ff02::1", "ff0e::1")),
        *(f"datagram{how} {address}" for how in ("", " by device") for address in ("2001:db8:1::31", "fd00:ec2::254")),
        "the machine's 2001:db8:2::1", "another by device",
    )),
    ("ECONNREFUSED", (
        *(f"in IPv4 {address}" for address in ("203.0.113.30", "127.0.0.1", "203.0.113.1", "169.254.169.254")),
        *(f"the machine's {address}" for address in ("::1", "::")),  # the sandbox's own
    )),
    ("EPERM", (
        f"datagram {LISTED6}", f"datagram by device {LISTED6}", "to all by device", "a raw packet", "a raw header",
        "as a foreign address", "another's mark", "another address", "the own address's end", "another route",
        "a route's end", "a neighbor",
    )),
    ("silence", ("a listed address by device", "by segments to another")),
    ("reset", ("a listed address, a closed port", "the proxy's own port 0")),
    ("EROFS", tuple(f"setting {name}" for name in ("all/forwarding", "tap0/accept_ra", "all/seg6_enabled",
                                                   "lo/disable_ipv6"))),
)  # fmt: skip
_EXPECTED6 = {
    **{f"listed {address}": "hello" for address in _LISTED6},
    "an end of one direction": "hello again",
    "a long body": 2_000_005,
    **{name: result for result, names in _REFUSED6 for name in names},
    "a name": ["198"],
    "a name in IPv6": "no address",
    "processes": [],
}
_PINGS6 = {
    **dict.fromkeys(("ping 2001:db8:1::31", "ping fd00:ec2::254"), "ENETUNREACH"),
    f"ping {LISTED6}": "ECONNREFUSED",
    "ping to all by device": "silence",
}
_UNKNOWN = "[Errno -2] Name or service not known"
_CUT_OFF = "[Errno -3] Temporary failure in name resolution"
_SECOND = ["lo tap0", _UNKNOWN, EVIL, "ECONNREFUSED", "ECONNREFUSED", "ENETUNREACH", 1]
_IPV6 = ["lo tap0", SITE, _UNKNOWN, "ECONNREFUSED", "ECONNREFUSED", "hello", 1]
_PHASES = {
    "second": _SECOND,
    "public": ["lo tap0", SITE, EVIL, EVIL, LISTED, "ENETUNREACH", 0],
    "IPv6": _IPV6,
    "first": ["lo tap0", SITE, _UNKNOWN, "ECONNREFUSED", LISTED, "ENETUNREACH", 1],
    "IPv6 again": _IPV6,
    "none": ["lo", _CUT_OFF, _CUT_OFF, "ENETUNREACH", "ENETUNREACH", "ENETUNREACH", 0],
    "second again": _SECOND,
}
"""Policy → the devices, what site.test, evil.test, EVIL, LISTED and LISTED6 say, and the number of proxies."""
_ASKED = {f"{name}.test" for name in ("a.b.wild", "alias", "changing", "gone", "here", "loop", "metadata", "private",
                                      "rebinding", "site")}  # fmt: skip
_PORTS = {(SITE, 80), (SITE, 443), (EVIL, 80), (LISTED, 22), ("203.0.113.20", 80), ("203.0.113.21", 80),
          ("203.0.113.130", 22)}  # fmt: skip


def _check(printed: str) -> None:
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert found["before"] == 0, "a proxy without a connection"
    assert found["results"].pop("ping") in ("EPERM", "EACCES"), "the latter for an ordinary user's"
    assert found["results"] == _EXPECTED
    # EVIL is alias.test's address. The registry is asked for the image, where it is not in the cache.
    assert {name for name in found["seen"]["queries"] if name.endswith(".test")} == _ASKED
    assert not [name for name in found["seen"]["queries"] if "c2VjcmV0" in name or "secret" in name]
    assert {(address, port) for address, port in found["seen"]["connections"] if port != 8099} == _PORTS
    results6 = found["IPv6"]["results"]
    assert {name: results6.pop(name) for name in _PINGS6} in (_PINGS6, dict.fromkeys(_PINGS6, "EACCES"))
    assert results6 == _EXPECTED6
    reached = [(address, port) for address, port in found["IPv6"]["seen"]["connections"] if ":" in address]
    assert set(reached) == {(address, 22) for address in _LISTED6}
    assert found["phases"] == _PHASES
    assert "its network process (the allowlist's proxy) ended" in found["lost"]


_ATTACK = (sys.executable, "-m", "tests.helpers.hostile.listed")
_ON_INTERNET = (sys.executable, "-m", "tests.helpers.internet")


@pytest.mark.slow
async def test_a_sandbox_reaches_what_its_list_has_and_nothing_else() -> None:
    await ensure_base_tar()
    done = await asyncio.to_thread(
        subprocess.run, (*_ON_INTERNET, *_ATTACK), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    _check(done.stdout)


@pytest.mark.slow
async def test_an_ordinary_users_does_not_either() -> None:
    base = await ensure_base_tar()

    def attack() -> subprocess.CompletedProcess[str]:
        with rootless_user() as (user, home):
            return run_as(user, home, *_ATTACK, base=base, around=_ON_INTERNET)

    done = await asyncio.to_thread(attack)
    assert done.returncode == 0, done.stdout + done.stderr
    _check(done.stdout)


@pytest.mark.slow
async def test_each_phase_has_its_list_in_an_episode_and_in_harbors_own_trial() -> None:
    await ensure_base_tar()
    argv = (*_ON_INTERNET, sys.executable, "-m", "tests.helpers.listed_trials")
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trial, episode = json.loads(done.stdout)
    assert trial == episode == [{"policy site": 1, "policy evil": 1, "verifier site": 1, "verifier evil": 0}]


async def test_a_list_of_nothing_is_no_network(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path / "nothing", network_policy=listed())) as sandbox:
        assert await output(sandbox, DEVICES) == "lo"
    made = make_sandbox(tmp_path / "none", network_policy=listed("example.com"), network="none")
    async with running(made) as sandbox:
        assert await output(sandbox, DEVICES) == "lo"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("169.254.169.254", r"169\.254\.169\.254, which no sandbox may reach: .*private_network=true, cloud"),
        ("10.1.0.0/16", r"10\.1\.0\.0/16, which no sandbox may reach"),
        ("198.18.0.7", r"198\.18\.0\.7, which no sandbox may reach: .* and 198\.18\.0\.0/15 never"),
        ("fd00:ec2::254", r"fd00:ec2::254, which no sandbox may reach: .*private_network=true, cloud metadata"),
        (
            "::ffff:127.0.0.1",
            r"::ffff:\S+, which no sandbox may .* and IPv6 that is .* stands for IPv4 never",
        ),
    ],
)
async def test_an_address_that_no_list_may_have_is_refused_by_name(tmp_path: Path, entry: str, complaint: str) -> None:
    later = [listed("example.com", entry)]
    with pytest.raises(TaskError, match=complaint):
        await make_sandbox(tmp_path, phase_network_policies=later).start(force_build=False)


async def test_an_undeclared_list_is_refused(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        with pytest.raises(SandboxError, match="made without an allowlist"):
            await sandbox.set_network_policy(listed("example.com"))


async def test_the_machines_own_network_stays_what_it_is(tmp_path: Path) -> None:
    """A list has a network of its own in any case; the machine's is given at the start or never."""
    made = make_sandbox(tmp_path / "listed", network_policy=listed("example.com"), network="machine")
    async with running(made) as sandbox:
        assert await output(sandbox, DEVICES) == "lo\ntap0"
        with pytest.raises(SandboxError, match="machine's network at their start or never"):
            await sandbox.set_network_policy(PUBLIC)
    made = make_sandbox(tmp_path / "public", network_policy=PUBLIC, network="machine")
    async with running(made) as sandbox:
        with pytest.raises(ValueError, match="cannot change network policy"):
            await sandbox.set_network_policy(listed("example.com"))


async def test_a_listed_private_address_is_reached_where_private_networks_are_open(tmp_path: Path) -> None:
    """Such as the address of a gateway on this machine."""
    policy: NetworkPolicy = listed(first_words.own_address())
    async with first_words.greeting() as port:
        made = make_sandbox(tmp_path, network_policy=policy, private_network=True)
        async with running(made) as sandbox:
            assert await first_words.connect(sandbox, port) == "hello"
