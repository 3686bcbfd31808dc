"""Print the size of the house: code lines by package and by adapter, files, and names of each shared setting.

    python .ci/table.py [COMMIT ...]      the working tree, or each commit in a column

Code lines are those of Python without blanks, comments and docstrings.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "retries": {"max_retries", "retries", "max_rollout_retries"},
    "concurrent episodes": {"n_concurrent", "concurrency"},
    "the agent": {"agent", "harbor_agent"},
    "the agent's options": {"agent_options", "agent_kwargs", "harbor_agent_kwargs"},
    "the episode's record": {"env", "env_settings", "terminal_env"},
}
"""Names under which settings were declared. A value of another meaning may have one of these names, too."""


def main() -> None:
    """Print the table."""
    columns = [measure(dict(files(commit))) for commit in sys.argv[1:] or [None]]
    rows = list(dict.fromkeys(name for column in columns for name in column))
    for name in rows:
        print(f"{name:<44}" + "".join(f"{column.get(name, 0):>10}" for column in columns))


def files(commit: str | None) -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of the Python files of a commit, or of the working tree's tracked ones."""
    listing = ["git", "ls-files"] if commit is None else ["git", "ls-tree", "-r", "--name-only", commit]
    for path in run(*listing).splitlines():
        if path.endswith(".py") and path.startswith(("harbor_gym/", "tests/")) and (commit or (ROOT / path).exists()):
            yield path, (ROOT / path).read_text() if commit is None else run("git", "show", f"{commit}:{path}")


def run(*command: str) -> str:
    """Return the output of a command in the repository."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def measure(texts: dict[str, str]) -> Counter[str]:
    """Return the figures by name."""
    found: Counter[str] = Counter()
    names: dict[str, set[str]] = {setting: set() for setting in SETTINGS}
    for path, text in texts.items():
        parts = path.split("/")
        if parts[0] == "tests":
            found["tests, all lines"] += text.count("\n")
            continue
        lines = code_lines(text)
        found["harbor_gym, code lines"] += lines
        found["harbor_gym, files"] += 1
        room = parts[1] if len(parts) > 2 else "(top)"
        found[f"  {room}"] += lines
        if room == "adapters" and len(parts) > 3:
            found[f"    {parts[2]}"] += lines
        for name in () if path.endswith("config/aliases.py") else declared(text):
            for setting, known in SETTINGS.items():
                if name in known:
                    names[setting].add(name)
    for setting, seen in names.items():
        found[f"names of {setting}"] = len(seen)
    return Counter(dict(sorted(found.items(), key=lambda item: order(item[0]))))


def order(name: str) -> tuple[int, str]:
    """Return the place of a row."""
    groups = (not name.startswith("harbor_gym"), not name.startswith("  "), not name.startswith("names"))
    return groups.index(False) if False in groups else 3, "adapters" + name if name.startswith("    ") else name.strip()


def code_lines(text: str) -> int:
    """Return the number of lines with code."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for item in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                docs.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def declared(text: str) -> Iterator[str]:
    """Yield the names of the fields and parameters that a module declares."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield from (
                i.target.id for i in node.body if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (argument.arg for argument in (*node.args.args, *node.args.kwonlyargs))


if __name__ == "__main__":
    main()
