"""Work of mkdocs beyond its plugins: diagrams become SVG, and the page of commands is made from the command line."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from diagrams import draw

_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = Path(__file__).with_name("commands_page.py")
_PYTHON = Path(__file__).parents[2] / ".venv/bin/python"
"""The package's interpreter: the site's has no typer."""


def on_files(files: Any, config: Any) -> Any:
    """Add the page of commands, which the package's own interpreter makes."""
    from mkdocs.structure.files import File

    done = subprocess.run([_PYTHON, _COMMANDS], capture_output=True, check=True, text=True, encoding="utf-8")
    files.append(File.generated(config, "commands.md", content=done.stdout))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put drawings in place of diagrams: no script of another server draws them when the page is read."""
    return _DIAGRAM.sub(lambda found: f'<div class="diagram">{draw(found[1])}</div>', markdown)
