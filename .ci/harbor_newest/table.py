"""Write which of our extras can be installed beside which Harbor, as the resolver answers today, into the docs."""

import datetime
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guide/harbor-versions.md"
VERSIONS = ("0.24", "0.25", "0.26")
ON_312 = ("tinker", "server", "trl", "skyrl", "openenv", "verifiers", "ray", "verl")
EXTRAS = {"": "3.12", **dict.fromkeys(ON_312, "3.12")}
"""Extra → Python to resolve for; the empty one is the package alone."""
EXTRAS["nemo-gym"] = "3.13.14"
BEGIN, END = "<!-- table: .ci/harbor_newest/table.py -->", "<!-- end of the table -->"


def resolves(extra: str, version: str) -> bool:
    """Return whether the extra's newest releases can be installed beside a Harbor of this version."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as constraint:
        constraint.write(f"harbor=={version}.*\n")
        constraint.flush()
        command = [ROOT / ".venv/bin/uv", "pip", "compile", "--quiet", ROOT / "pyproject.toml"]
        command += ["--constraint", constraint.name, "--python-version", EXTRAS[extra]]
        command += ["--extra", extra] if extra else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "No solution found" not in done.stderr:
        sys.exit(f"the resolver failed for {extra or 'the package'} on Harbor {version}:\n{done.stderr}")
    return done.returncode == 0


def table() -> str:
    """Return the table, with the date on which the resolver answered."""
    rows = [
        [f"`{extra}`" if extra else "none", *("yes" if resolves(extra, version) else "no" for version in VERSIONS)]
        for extra in EXTRAS
    ]
    lines = [["extra", *(f"Harbor {version}" for version in VERSIONS)], ["---"] * (len(VERSIONS) + 1), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\nAsked on {datetime.datetime.now(datetime.UTC).date()}."


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", f"{BEGIN}\n{table()}\n{END}", text, flags=re.DOTALL))
