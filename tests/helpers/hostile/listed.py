"""Attack allowlists on an internet of their own, and change them. As a program it prints what came of it as JSON."""

import asyncio
import json
import os
import signal
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime.procfs import descendants, read_stat
from harbor_gym.errors import SandboxLostError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.hostile.first_words import DEVICES, PUBLIC
from tests.helpers.internet import EVIL, LISTED, LOG_URL
from tests.helpers.patience import eventually
from tests.helpers.sandboxes.local import make_sandbox, output, running

_NAMES = ("site", "*.wild", "alias", "changing", "rebinding", "private", "metadata", "loop", "here", "gone")
ALLOWED = (*(f"{name}.test" for name in _NAMES), LISTED, "203.0.113.128/28")
_PROGRAM = Path(__file__).parent / "attackers" / "listed.py"
_HOLD = f"""
import socket
with socket.create_connection(("{LISTED}", 22)) as held:
    try:
        while held.recv(5):
            open("/tmp/held", "w").write("open")
    except OSError:
        pass
    open("/tmp/held", "w").write("ended")
"""
_LOOK = f"""
import errno, json, socket, urllib.request
def ask(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["address"]
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        return errno.errorcode.get(reason.errno, str(reason))
print(json.dumps([ask(f"http://{{host}}/") for host in ("site.test", "evil.test", "{EVIL}", "{LISTED}")]))
"""


def listed(*hosts: str) -> NetworkPolicy:
    """Return the policy with an allowlist."""
    return NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=list(hosts))


_FIRST, _SECOND = listed(*ALLOWED), listed("evil.test", "203.0.113.200")
_NONE = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def proxies() -> list[int]:
    """Return the pids of the proxies that come of this process."""
    found = map(read_stat, descendants(os.getpid()))
    return [stat.pid for stat in found if stat is not None and stat.name == "egress-proxy"]


async def _change(sandbox: LocalEnvironment) -> dict[str, Any]:
    """Return whom a sandbox reaches in one phase after the other."""
    await output(sandbox, f"python3 -c '{_HOLD}' >/dev/null 2>&1 & while [ ! -e /tmp/held ]; do sleep 0.05; done")
    reached: dict[str, Any] = {}
    policies = {"second": _SECOND, "public": PUBLIC, "first": _FIRST, "none": _NONE, "second again": _SECOND}
    for name, policy in policies.items():
        await sandbox.set_network_policy(policy)
        if name == "second":
            await output(sandbox, "timeout 60 sh -c 'until grep -q ended /tmp/held; do sleep 0.05; done'")
        seen = await output(sandbox, f"{DEVICES}; python3 -c '{_LOOK}'")
        *devices, hosts = seen.splitlines()
        reached[name] = [" ".join(devices), *json.loads(hosts), len(proxies())]
    return reached


async def main(directory: Path) -> dict[str, Any]:
    """Return what the attacks gave, what the internet saw of them, and whom the phases reached."""
    made = make_sandbox(
        directory, network_policy=_FIRST, phase_network_policies=[_SECOND, PUBLIC, _NONE]
    )  # fmt: skip
    async with running(made) as sandbox:
        before = len(proxies())
        await sandbox.upload_file(_PROGRAM, "/tmp/listed.py")
        results = json.loads(await output(sandbox, "python3 /tmp/listed.py"))
        with urllib.request.urlopen(LOG_URL) as answer:  # noqa: ASYNC210  # nothing else runs here
            seen = json.load(answer)
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
    return {"before": before, "results": results, "seen": seen, "phases": phases, "lost": lost}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        json.dump(asyncio.run(main(Path(folder))), sys.stdout)
