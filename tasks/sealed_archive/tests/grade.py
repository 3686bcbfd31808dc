"""1 for an opened archive, else 0. The record is root's."""

import json
import sys
from pathlib import Path

sys.path.insert(0, "/tests")
from verdict import give  # -I leaves the script's own directory out

RECORD = Path("/var/lib/archive/record.json")

opened = RECORD.exists() and json.loads(RECORD.read_text(encoding="utf-8"))["opened"]
print("opened:", opened)
give({"reward": float(opened)})
