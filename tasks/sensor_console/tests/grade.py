"""A third for each sensor locked in the session that was committed last. The record is root's."""

import json
import sys
from pathlib import Path

sys.path.insert(0, "/tests")
from verdict import give  # -I leaves the script's own directory out

RECORD = Path("/var/lib/station/record.json")
SENSORS = 3

locked = json.loads(RECORD.read_text(encoding="utf-8"))["locked"] if RECORD.exists() else []
print("locked:", locked)
give({"reward": len(locked) / SENSORS})
