"""Work of mkdocs beyond its plugins: diagrams become SVG, the pages of commands and of the API are made from the code,
and each page has the version.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from api_page import expanded
from diagrams import draw

_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = Path(__file__).with_name("commands_page.py")
_PACKAGE = Path(__file__).parents[2] / "harbor_gym"
_PYTHON = Path(__file__).parents[2] / ".venv/bin/python"
"""The package's interpreter: the site's has no typer."""


def on_config(config: Any) -> Any:
    """Put the version into the site's name, which each page has at its head."""
    text = (_PACKAGE / "__init__.py").read_text(encoding="utf-8")
    config.site_name += f" {re.findall(r'^__version__ = "(.*)"', text, re.MULTILINE)[0]}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the page of commands, which the package's own interpreter makes."""
    from mkdocs.structure.files import File

    done = subprocess.run([_PYTHON, _COMMANDS], capture_output=True, check=True, text=True, encoding="utf-8")
    files.append(File.generated(config, "commands.md", content=done.stdout))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put drawings in place of diagrams, which no script of another server then draws, and the entries of the API."""
    return expanded(_DIAGRAM.sub(lambda found: f'<div class="diagram">{draw(found[1])}</div>', markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Leave out what Markdown does not know of docstrings: roles such as ``:meth:``, and the second colon of ``::``."""
    return re.sub(r"::(?=</p>)", ":", re.sub(r":(?:meth|class|func|mod|data|attr|exc):(?=<code>)", "", html))
