"""Step 3: the share of right lines in the report; a wrong or missing line costs as much as a right one brings."""

import sys
from pathlib import Path

sys.path.insert(0, "/tests")
from verdict import give, read  # -I leaves the script's own directory out

expected = Path("/tests/report.txt").read_text(encoding="utf-8").splitlines()
found = (read("/home/agent/report.txt") or "").split("\n")
lines = [line.rstrip() for line in found if line.strip()]
wrong = sum(line not in expected for line in lines) + len(lines) - len(set(lines))
right = len(set(lines) & set(expected))
in_order = [line for line in lines if line in expected] == [line for line in expected if line in lines]
print(f"{right} of {len(expected)} lines right, {wrong} wrong, in order: {in_order}")
give({"reward": max(0.0, (right - wrong) / len(expected)) if in_order else 0.0})
