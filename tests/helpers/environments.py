"""Python environments that lack some of this one's packages."""

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path


def python_without(folder: Path, *packages: str) -> Path:
    """Make an environment of links to this one's packages, without some of them; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    lacking = {file.parts[0] for package in packages for file in importlib.metadata.distribution(package).files or []}
    here = Path(sysconfig.get_path("purelib"))
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for entry in here.iterdir():
        if entry.name not in lacking | {"__pycache__"}:
            (there / entry.name).symlink_to(entry)
    return folder / "bin/python"
