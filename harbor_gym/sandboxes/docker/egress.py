"""Why this machine's Docker can't restrict a sandbox to a list of hosts, which Harbor's error does not say."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harbor_gym._runtime.processes import ask

_ASK_TIMEOUT_SEC = 20.0
_WAYS = "get it with `docker pull` or `docker load` where there is a registry, or use a cloud sandbox for this task"


def probe_refusal(image: str) -> str:
    """Return why Harbor's probe of the daemon's kernel, in a container of ``image``, failed.

    Blocks until the daemon answers, some tenths of a second.
    """
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    try:
        done = ask(*argv, timeout_sec=_ASK_TIMEOUT_SEC)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"Docker does not answer ({exc})"
    if done.returncode == 0:
        return "the daemon's kernel has no nftables with fib (CONFIG_NFT_FIB_INET), or no container of that image runs"
    if "no such image" in done.stderr.lower():
        return f"its image {image} is not here and can't be pulled: {_WAYS}"
    return f"Docker does not answer: {' '.join(done.stderr.split())}"


def build_refusal(dockerfile: Path, error: Exception) -> str:
    """Return why the sidecar's image can't be built."""
    bases = [
        line.split()[1] for line in dockerfile.read_text(encoding="utf-8").splitlines() if line.startswith("FROM ")
    ]
    output = " ".join(str(error).split())
    return (
        "network allowlists on Docker run Harbor's egress sidecar, whose image can't be built here. It stands on "
        f"{', '.join(bases)}: {_WAYS}. Docker's words: {output}"
    )
