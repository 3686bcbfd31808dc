"""Where the repository's folders are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""

TASKS = ROOT / "tasks"
"""The tasks that ship."""
