"""A Harbor task as small as a task can be, written where a test wants it."""

from pathlib import Path

BASE_IMAGE = "debian:bookworm-slim"

_FILES = {
    "task.toml": 'schema_version = "1.4"\n\n[verifier]\ntimeout_sec = 60\n',
    "instruction.md": "Create the file /app/done.\n",
    "environment/Dockerfile": f"FROM {BASE_IMAGE}\nWORKDIR /app\n",
    "solution/solve.sh": "#!/bin/bash\ntouch /app/done\n",
    "tests/test.sh": "#!/bin/bash\ntest -e /app/done\necho $((! $?)) >/logs/verifier/reward.txt\n",
}


def write_tiny_task(directory: Path, **files: str) -> Path:
    """Write a task that is solved by creating one file.

    Args:
        directory: Where to write it.
        files: Content in place of a file's own, by the file's name without suffix (``Dockerfile``, ``test``, …).
    """
    for relative, content in _FILES.items():
        file = directory / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(files.get(file.stem, content))
    return directory.resolve()
