"""The blocks of README and the pages. As a program: write those of Python into build/blocks, which pyright checks."""

import re
import shutil
from collections.abc import Iterator

from tests.helpers.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TARGET = ROOT / "build/blocks"

_TRL = ("reportPrivateImportUsage", "TRL names what it exports when it is imported, which no type checker does")
_PANDAS = [
    (f"report{rule}", "pandas infers no type of a group's column; pandas-stubs is a package of its own")
    for rule in ("ArgumentType", "AttributeAccessIssue", "CallIssue", "IndexIssue", "OperatorIssue")
]
EXCUSED = {
    "evaluation-1": _PANDAS,
    "trl-1": [_TRL],
    "trl-3": [_TRL],
}
"""The rules of the type checker, basic, that a block may break, and why."""


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield every fenced block of a language, after its name, which is its page and place."""
    for page in PAGES:
        texts = [text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]
        yield from ((f"{page.stem}-{number}", text) for number, text in enumerate(texts, start=1))


def main() -> None:
    """Write each block into a file of its name, which two blocks must not have."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    for name, text in blocks("python"):
        rules = "".join(f"# pyright: {rule}=false\n" for rule, _ in EXCUSED.get(name, ()))
        with (TARGET / f"{name}.py").open("x", encoding="utf-8") as file:
            file.write(f"# pyright: basic\n{rules}{text}")


if __name__ == "__main__":
    main()
