"""Attack allowlists on an internet of their own, and change them. As a program it prints what came of it as JSON."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime.procfs import descendants, read_stat
from harbor_gym.errors import SandboxLostError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.hostile.first_words import DEVICES, PUBLIC, greeting
from tests.helpers.internet import EVIL, LISTED, LISTED6, LOG_URL
from tests.helpers.patience import eventually
from tests.helpers.sandboxes.local import make_sandbox, output, running

_NAMES = ("site", "*.wild", "alias", "changing", "rebinding", "private", "metadata", "loop", "here", "gone")
ALLOWED = (*(f"{name}.test" for name in _NAMES), LISTED, "203.0.113.128/28")
_PROGRAM, _PROGRAM6 = (Path(__file__).parent / "attackers" / name for name in ("listed.py", "listed_ipv6.py"))
_HOLD = """
import socket, sys
with socket.create_connection((sys.argv[1], 22)) as held:
    try:
        while held.recv(5):
            open("/tmp/held", "w").write("open")
    except OSError:
        pass
    open("/tmp/held", "w").write("ended")
"""
_AWAIT_END = "timeout 60 sh -c 'until grep -q ended /tmp/held; do sleep 0.05; done'"
_LOOK = f"""
import errno, http.client, json, socket, urllib.request
def ask(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["address"]
    except http.client.BadStatusLine as exc:
        return exc.line[:5]
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        return errno.errorcode.get(reason.errno, str(reason))
hosts = ("site.test", "evil.test", "{EVIL}", "{LISTED}", "[{LISTED6}]:22")
print(json.dumps([ask(f"http://{{host}}/") for host in hosts]))
"""


def listed(*hosts: str) -> NetworkPolicy:
    """Return the policy with an allowlist."""
    return NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=list(hosts))


_FIRST, _SECOND = listed(*ALLOWED), listed("evil.test", "203.0.113.200")
# The ranges have parts that no sandbox may reach, this machine's address among them.
_IPV6 = listed("site.test", LISTED6, "2001:db8:2::/64", "2002::/15", "::/7", "f000::/4")
_NONE = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def proxies() -> list[int]:
    """Return the pids of the proxies that come of this process."""
    found = map(read_stat, descendants(os.getpid()))
    return [stat.pid for stat in found if stat is not None and stat.name == "egress-proxy"]


async def _hold(sandbox: LocalEnvironment, address: str) -> None:
    """Let a connection be open in the background."""
    begin = f"rm -f /tmp/held; python3 -c '{_HOLD}' {address} >/dev/null 2>&1 &"
    await output(sandbox, f"{begin} timeout 60 sh -c 'until [ -e /tmp/held ]; do sleep 0.05; done'")


async def _change(sandbox: LocalEnvironment) -> dict[str, Any]:
    """Return whom a sandbox reaches in one phase after the other."""
    await _hold(sandbox, LISTED)
    reached: dict[str, Any] = {}
    policies = {"second": _SECOND, "public": PUBLIC, "IPv6": _IPV6, "first": _FIRST, "IPv6 again": _IPV6, "none": _NONE,
                "second again": _SECOND}  # fmt: skip
    for name, policy in policies.items():
        await sandbox.set_network_policy(policy)
        if name == "second":
            await output(sandbox, _AWAIT_END)
        seen = await output(sandbox, f"{DEVICES}; python3 -c '{_LOOK}'")
        *devices, hosts = seen.splitlines()
        reached[name] = [" ".join(devices), *json.loads(hosts), len(proxies())]
    return reached


async def _attack_ipv6(sandbox: LocalEnvironment) -> dict[str, Any]:
    """Return what the attacks gave, and which connections the internet saw."""
    await sandbox.set_network_policy(_IPV6)
    await sandbox.upload_file(_PROGRAM6, "/tmp/listed_ipv6.py")
    async with greeting(socket.AF_INET6) as port:
        results = json.loads(await output(sandbox, f"python3 /tmp/listed_ipv6.py {port}"))
    await _hold(sandbox, LISTED6)
    await sandbox.set_network_policy(_FIRST)
    await output(sandbox, _AWAIT_END)
    return {"results": results, "seen": _seen()}


def _seen() -> dict[str, Any]:
    with urllib.request.urlopen(LOG_URL) as answer:
        return json.load(answer)


async def main(directory: Path) -> dict[str, Any]:
    """Return what the attacks gave, what the internet saw of them, and whom the phases reached."""
    made = make_sandbox(directory, network_policy=_FIRST, phase_network_policies=[_SECOND, PUBLIC, _IPV6, _NONE])
    async with running(made) as sandbox:
        before = len(proxies())
        await sandbox.upload_file(_PROGRAM, "/tmp/listed.py")
        results = json.loads(await output(sandbox, "python3 /tmp/listed.py"))
        seen = _seen()
        results6 = await _attack_ipv6(sandbox)
        phases = await _change(sandbox)
        (proxy,) = proxies()
        waiting = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(0.2)
        os.kill(proxy, signal.SIGKILL)
        try:
            await waiting
            lost = ""
        except SandboxLostError as exc:
            lost = str(exc)
    await eventually(lambda: not proxies())
    return {"before": before, "results": results, "IPv6": results6, "seen": seen, "phases": phases, "lost": lost}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        json.dump(asyncio.run(main(Path(folder))), sys.stdout)
