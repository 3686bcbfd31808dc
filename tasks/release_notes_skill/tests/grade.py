"""A fifth each for the version, for each of three sections, and for a file that is right to the letter."""

import sys
from pathlib import Path

sys.path.insert(0, "/tests")
from verdict import give, read  # -I leaves the script's own directory out


def blocks(text: str) -> list[str]:
    """Return what stands between empty lines."""
    return [block.strip() for block in text.strip().split("\n\n")]


wanted = Path("/tests/expected.md").read_text(encoding="utf-8")
notes = read("/home/agent/NOTES.md") or ""
found = blocks(notes)
version, *sections = blocks(wanted)
rights = [found[:1] == [version], *(section in found for section in sections), notes.rstrip() == wanted.rstrip()]
print("version, sections, whole file:", rights)
give(
    {
        "reward": sum(rights) / len(rights),
        "version": float(rights[0]),
        "sections": sum(rights[1:-1]) / len(sections),
        "exact": float(rights[-1]),
    }
)
