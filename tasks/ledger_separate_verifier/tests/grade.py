"""The share of right balances, in a sandbox that only got the result and a checksum of the input."""

import csv
import hashlib
import json
from collections import defaultdict
from pathlib import Path

RESULT = Path("/home/agent/balances.csv")
CHECKSUM = Path("/logs/artifacts/ledger.sha256")
LEDGER = Path("/tests/ledger.csv")
VERDICT = Path("/logs/verifier/reward.json")
MAX_BYTES = 1 << 20


def expected_rows() -> list[str]:
    """Return the balances that the ledger leads to."""
    with LEDGER.open(encoding="utf-8") as file:
        postings = {row["id"]: row for row in csv.DictReader(file)}
    reversed_ids = {row["debit"] for row in postings.values() if row["kind"] == "reverse"}
    cents: dict[str, int] = defaultdict(int)
    for row in postings.values():
        if row["kind"] == "post" and row["id"] not in reversed_ids:
            amount = int(row["amount"].replace(".", ""))
            cents[row["debit"]] += amount
            cents[row["credit"]] -= amount
    signs = {account: "-" if total < 0 else "" for account, total in cents.items()}
    return [f"{name},{signs[name]}{abs(total) // 100}.{abs(total) % 100:02d}" for name, total in sorted(cents.items())]


def found_rows() -> list[str]:
    """Return the lines of the policy's result; none if it is not a plain file of a sane size."""
    if not RESULT.is_file() or RESULT.is_symlink() or RESULT.stat().st_size > MAX_BYTES:
        return []
    return [line.strip() for line in RESULT.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


def is_untouched() -> bool:
    """Return whether the input was left alone."""
    if not CHECKSUM.is_file() or CHECKSUM.is_symlink():
        return False
    return CHECKSUM.read_text(encoding="utf-8").split()[:1] == [hashlib.sha256(LEDGER.read_bytes()).hexdigest()]


expected = expected_rows()
found = found_rows()
right = len(set(found) & set(expected))
wrong = max(0, len(found) - 1 - right)
exact = found == ["account,balance", *expected]
untouched = is_untouched()
share = max(0.0, (right - wrong) / len(expected))
print(
    f"{right} of {len(expected)} balances right, {wrong} other rows, exact file: {exact}, input untouched: {untouched}"
)
reward = (1.0 if exact else 0.9 * share) if untouched else 0.0
VERDICT.write_text(json.dumps({"reward": reward, "balances": share, "untouched": float(untouched)}), encoding="utf-8")
