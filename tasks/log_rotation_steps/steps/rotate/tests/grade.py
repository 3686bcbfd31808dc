"""Step 1: four things to get right, a quarter each. None of them holds at the start."""

import hashlib
import stat
import sys
from pathlib import Path

sys.path.insert(0, "/tests")
from originals import FIRST, LIVE, SECOND  # -I leaves the script's own directory out
from verdict import give, read

LOGS = "/var/log/shop"


def holds(name: str, expected: str) -> bool:
    """Return whether a log holds exactly what an original held."""
    text = read(f"{LOGS}/{name}")
    return text is not None and hashlib.sha256(text.encode()).hexdigest() == expected


def new_log_is_there() -> bool:
    """Return whether the live log is a new one."""
    return read(f"{LOGS}/shop.log") == "" and stat.S_IMODE(Path(f"{LOGS}/shop.log").lstat().st_mode) == 0o640


checks = [holds("shop.log.1", LIVE), holds("shop.log.2", FIRST), holds("shop.log.3", SECOND), new_log_is_there()]
print("shop.log.1, .2, .3, new shop.log:", checks)
give({"reward": sum(checks) / len(checks)})
