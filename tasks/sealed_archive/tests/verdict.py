"""Reading what an unprivileged policy left, and writing the verdict, as root."""

import json
import os
import pwd
import stat
from pathlib import Path

VERDICT_DIR = Path("/logs/verifier")
MAX_BYTES = 1 << 20


def read(path: str) -> str | None:
    """Return the text of a plain file that the policy owns; None for anything else."""
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace")


def read_bytes(path: str) -> bytes | None:
    """Return the content of a plain file that the policy owns; None for anything else.

    Links are not followed: one could lead to the answers, which root can read and the policy can't.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != pwd.getpwnam("agent").pw_uid or status.st_nlink != 1:
            return None
        return file.read(MAX_BYTES)


def give(rewards: dict[str, float]) -> None:
    """Write the verdict in one move."""
    partial = VERDICT_DIR / ".verdict"
    partial.write_text(json.dumps(rewards))
    partial.replace(VERDICT_DIR / "reward.json")
    print(json.dumps(rewards))
