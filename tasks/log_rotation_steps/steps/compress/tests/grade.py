"""Step 2: each of two logs compressed is half the reward; the two others must be kept, which a gate asks for."""

import gzip
import hashlib
import io
import os
import sys
import zlib

sys.path.insert(0, "/tests")
from originals import FIRST, LIVE, SECOND, TRAFFIC  # -I leaves the script's own directory out
from verdict import MAX_BYTES, give, read_bytes

LOGS = "/var/log/shop"


def digest(content: bytes) -> str:
    """Return the SHA-256 of a log."""
    return hashlib.sha256(content).hexdigest()


def compressed(name: str, expected: str) -> bool:
    """Return whether a log was replaced by its compressed self."""
    packed = read_bytes(f"{LOGS}/{name}.gz")
    if packed is None or os.path.lexists(f"{LOGS}/{name}"):
        return False
    try:
        return digest(gzip.GzipFile(fileobj=io.BytesIO(packed)).read(MAX_BYTES)) == expected
    except (OSError, EOFError, zlib.error):
        return False


def kept(name: str, expected: str) -> bool:
    """Return whether a log is what it was."""
    return digest(read_bytes(f"{LOGS}/{name}") or b"") == expected


untouched = kept("shop.log", TRAFFIC) and kept("shop.log.1", LIVE)
packed = [compressed("shop.log.2", FIRST), compressed("shop.log.3", SECOND)]
print("compressed .2 and .3:", packed, "kept shop.log and .1:", untouched)
give({"reward": sum(packed) / 2 if untouched else 0.0, "kept": float(untouched)})
