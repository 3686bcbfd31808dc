"""``make bench`` as a person runs it."""

import subprocess
import sys

from tests.helpers.paths import ROOT


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark in a process of its own, as ``make bench ARGS=`` does."""
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
