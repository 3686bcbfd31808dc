"""Half for the recovered text, a quarter for the edit, a quarter for tidiness; the last two need the first."""

import sys
from pathlib import Path

sys.path.insert(0, "/tests")
from verdict import give, read  # -I leaves the script's own directory out

NOTES = Path("/home/agent/notes")

unsaved = Path("/tests/unsaved.md").read_text(encoding="utf-8")
text = (read(f"{NOTES}/incident.md") or "").rstrip("\n") + "\n"
recovered = text.replace("wner: dana\n", "wner: ?\n") == unsaved
edited = text == unsaved.replace("wner: ?\n", "wner: dana\n")
tidy = recovered and not list(NOTES.glob(".*.sw?"))
print(f"recovered: {recovered}, edited: {edited}, tidy: {tidy}")
give(
    {
        "reward": 0.5 * recovered + 0.25 * edited + 0.25 * tidy,
        "recovered": float(recovered),
        "edited": float(edited),
        "tidy": float(tidy),
    }
)
