"""The public names on the page of the API: a line ``::: names PACKAGE`` becomes an entry for each of its names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMES = re.compile(r"^::: names (\S+)$", re.MULTILINE)
_ELSEWHERE = ("harbor_gym.errors", "harbor_gym.types")
"""Modules that the page has whole."""


def expanded(markdown: str) -> str:
    """Return a page with its entries; a name has the package under which users import it."""
    return _NAMES.sub(lambda found: "\n".join(_entries(found[1])), markdown)


def _entries(package: str) -> Iterator[str]:
    # An adapter's short name has the names of the adapter.
    places = (f"harbor_gym/adapters/{package.removeprefix('harbor_gym.')}", package.replace(".", "/"))
    path = next(found for place in places if (found := ROOT / place / "__init__.py").is_file())
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    public = next((ast.literal_eval(node.value) for node in tree.body if _is_all(node)), None)
    for node in imports:
        for name in node.names:
            shown = name.asname or name.name
            is_public = shown in public if public is not None else name.asname is not None
            if is_public and node.module not in _ELSEWHERE:
                yield f"::: {node.module}.{name.name}\n    options: {{ heading: {package}.{shown} }}"


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
