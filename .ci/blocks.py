"""Write the Python blocks of README and pages into build/blocks, which pyright checks with everything else."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build/blocks"

_TRL = ("reportPrivateImportUsage", "TRL names what it exports when it is imported, which no type checker does")
_PANDAS = [
    (f"report{rule}", "pandas infers no type of a group's column; pandas-stubs is a package of its own")
    for rule in ("ArgumentType", "AttributeAccessIssue", "CallIssue", "IndexIssue", "OperatorIssue")
]
EXCUSED = {
    "evaluation-1": _PANDAS,
    "openenv-3": [_TRL, ("reportArgumentType", "TRL's own worker does not fit TRL's own protocol")],
    "trl-1": [_TRL],
    "trl-3": [_TRL],
}
"""The rules of the type checker, basic, that a block may break, and why."""


def main() -> None:
    """Write each block into a file that is named by its page and place."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for number, text in enumerate(blocks, start=1):
            name = f"{page.stem}-{number}"
            rules = "".join(f"# pyright: {rule}=false\n" for rule, _ in EXCUSED.get(name, ()))
            (TARGET / f"{name}.py").write_text(f"# pyright: basic\n{rules}{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
