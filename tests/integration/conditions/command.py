"""The command line in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def harbor_gym(*words: str | Path, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line with these variables on top of this process's."""
    variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    command = [sys.executable, "-m", "harbor_gym", *map(str, words)]
    return subprocess.run(
        command, env=variables, capture_output=True, encoding="utf-8", errors="surrogateescape", check=False
    )
