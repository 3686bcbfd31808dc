"""verifiers imports plugins as top-level modules, and the console script is one: each kind of install brings both."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harbor_gym.adapters import verifiers
from tests.helpers.paths import ROOT

MODULE = "harbor_gym_verifiers.py"
CONSOLE = "harbor_gym_console.py"


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_install_has_the_plugin_beside_the_package(kind: str, tmp_path: Path) -> None:
    build = f"from hatchling.build import build_{kind} as build; print(build({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as archive:
        plugin, console = (archive.read(module).decode() for module in (MODULE, CONSOLE))
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert plugin == (ROOT / "harbor_gym/adapters/verifiers/plugin.py").read_text()
    assert console == (ROOT / "harbor_gym/cli/entry.py").read_text()
    assert any(name.endswith(".pth") for name in names) is (kind == "editable")
    assert ("harbor_gym/adapters/verifiers/harness.py" in names) is (kind == "wheel")
    assert not (ROOT / MODULE).exists()
    if kind == "wheel":
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
        words = [sys.executable, "-m", "harbor_gym", "--version"]
        shown = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")


def test_the_id_names_the_module() -> None:
    assert f"{verifiers.PLUGIN_ID.replace('-', '_')}.py" == MODULE


def test_without_the_extra_the_message_names_it() -> None:
    code = "import sys; sys.modules['verifiers'] = None\nfrom harbor_gym.adapters.verifiers import HarborTerminalEnv"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode == 1
    assert 'needs verifiers: pip install "harbor-gym[verifiers]"' in done.stderr
