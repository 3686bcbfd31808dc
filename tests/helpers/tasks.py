"""Small Harbor tasks for tests, written where the test needs them."""

from pathlib import Path

BASE = "debian:bookworm-slim"

FORGER = (
    "while sleep 0.01; do echo 1 > /tmp/one; "
    "[ ! -e /tests/test.sh ] || mv -f /tmp/one /logs/verifier/reward.txt 2>/dev/null; done"
)
"""Waits for the tests to begin, and then overwrites their verdict."""

PASS_IF_DONE = """\
#!/bin/bash
if [ "$(cat /srv/answer 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

DONE = "echo done > /srv/answer\n"
"""Keystrokes that solve a task graded by PASS_IF_DONE."""

UNDONE = "echo undone > /srv/answer\n"
"""Keystrokes after which it is not solved."""


def write_steps(task_dir: Path, *, root_toml: str = "") -> Path:
    """Write a task of two steps, each of which is solved by ``DONE``; return its directory."""
    write_task(task_dir, toml='[[steps]]\nname = "step-1"\n[[steps]]\nname = "step-2"\n', root_toml=root_toml)
    for name in ("step-1", "step-2"):
        (task_dir / "steps" / name / "tests").mkdir(parents=True)
        (task_dir / "steps" / name / "tests/test.sh").write_text(PASS_IF_DONE)
        (task_dir / "steps" / name / "instruction.md").write_text(f"Do {name}.\n")
    (task_dir / "instruction.md").unlink()
    return task_dir


def write_task(
    task_dir: Path,
    *,
    dockerfile: str = f"FROM {BASE}\nWORKDIR /srv\n",
    test_sh: str = PASS_IF_DONE,
    toml: str = "",
    root_toml: str = "",
    instruction: str = "Write the word done into /srv/answer.\n",
) -> Path:
    """Write a one-step task whose solution is ``DONE`` unless another is given; return its directory.

    ``root_toml`` holds keys outside all tables, ``toml`` the tables.
    """
    name = f"test/{task_dir.name.replace('_', '-')}"
    for file, text in {
        "task.toml": f'schema_version = "1.4"\n{root_toml}[task]\nname = "{name}"\n{toml}',
        "instruction.md": instruction,
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": test_sh,
        "solution/solve.sh": f"#!/bin/bash\n{DONE}",
    }.items():
        path = task_dir / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task_dir
