"""What an allowlist costs: the first answer, further ones, and bytes, against a public network."""

import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.processes import start_process
from harbor_gym.errors import SandboxError
from tests.benchmarks.report import BenchReport
from tests.helpers.internet import LONG_BYTES, SITE
from tests.helpers.sandboxes.local import make_sandbox, output, running

_WAYS = {
    "public": ([], "site.test"),
    "listed name": (["site.test"], "site.test"),
    "listed address": ([SITE], SITE),
}
"""Way → the allowlist, empty for a public network, and the host."""
_CLIENT = """
import http.client, json, sys, time

def get(path, buffer=bytearray(1 << 18)):
    begin = time.monotonic()
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    size = 0
    while got := answer.readinto(buffer):
        size += got
    connection.close()
    return time.monotonic() - begin, size

first, _ = get("/")
further = sorted(get("/")[0] for _ in range(50))[25]
took, size = get("/long")
print(json.dumps([first * 1e3, further * 1e3, size, size / took / 1e6]))
"""


@dataclass(frozen=True, slots=True)
class WayFigures:
    """Medians of one way to the same server."""

    way: str
    first_ms: float
    """The first answer of a sandbox, whose network's process starts with it."""

    further_ms: float
    """A further one, each with a look-up and a connection of its own."""

    megabytes_per_second: float


@dataclass(frozen=True, slots=True)
class NetworkReport(BenchReport):
    """A server in another network namespace of this machine, reached from local sandboxes by turns."""

    ways: list[WayFigures]
    repeat: int


async def measure_network(repeat: int) -> NetworkReport:
    """Measure all ways, on an internet of their own.

    Args:
        repeat: Sandboxes of each way.

    Raises:
        SandboxError: A sandbox did not start, or reached nothing.
    """
    argv = [sys.executable, "-m", "tests.helpers.internet", sys.executable, "-m", __name__, str(repeat)]
    process = await start_process(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    printed, errors = await process.communicate()
    if process.returncode:
        raise SandboxError(f"the network can't be measured: {errors.decode().strip().splitlines()[-1]}")
    return NetworkReport([WayFigures(**way) for way in json.loads(printed)], repeat)


def format_network(report: NetworkReport) -> str:
    """Return a report for people."""
    public = report.ways[0]
    rows = [
        (
            way.way,
            f"{way.first_ms:.0f}",
            f"{way.further_ms:.1f}",
            f"{way.megabytes_per_second:.0f}",
            f"{way.megabytes_per_second / public.megabytes_per_second:.2f}",
        )
        for way in report.ways
    ]
    return plain_table(("way", "first ms", "further ms", "MB/s", "of public"), rows)


async def _measure_here(repeat: int, folder: Path) -> list[dict[str, Any]]:
    found: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
    for number in range(repeat):
        for way, (hosts, host) in _WAYS.items():
            mode = NetworkMode.ALLOWLIST if hosts else NetworkMode.PUBLIC
            policy = NetworkPolicy(network_mode=mode, allowed_hosts=hosts)
            async with running(make_sandbox(folder / f"{way}-{number}", network_policy=policy)) as sandbox:
                first, further, size, rate = json.loads(await output(sandbox, f"python3 -c '{_CLIENT}' {host}"))
            assert size == LONG_BYTES
            found[way].append([first, further, rate])
    return [asdict(WayFigures(way, *map(median, zip(*values, strict=True)))) for way, values in found.items()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        json.dump(asyncio.run(_measure_here(int(sys.argv[1]), Path(name))), sys.stdout)
