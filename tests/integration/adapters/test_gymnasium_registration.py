"""Gymnasium knows the environment after any order of imports, from an installed wheel, anywhere."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC

WARNINGS = ("-W", "error::UserWarning", "-W", "error::ResourceWarning", "-W", "error::ImportWarning")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a user has it: built into a wheel, and installed from that."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True, capture_output=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True, cwd=folder)
    return folder / "site"


def run(code: str, installed: Path, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, *WARNINGS, "-c", code],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SEC,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    "lines",
    [
        "import gymnasium as gym, harbor_gym; gym.spec('HarborTerminal-v0')",
        "import harbor_gym, gymnasium as gym; gym.spec('HarborTerminal-v0')",
        "import gymnasium as gym; gym.make_vec('harbor_gym:HarborTerminal-v0', num_envs=2, task_dir='.').close()",
        "import gymnasium as gym; gym.make('harbor_gym:HarborTerminal-v0', task_dir='.').close(); import harbor_gym",
        "import harbor_gym; from gymnasium.envs.registration import registry; registry['HarborTerminal-v0']",
        "import harbor_gym.gymnasium, gymnasium as gym; harbor_gym.gymnasium.register(); gym.spec('HarborTerminal-v0')",
    ],
)
def test_the_environment_is_known(lines: str, installed: Path, tmp_path: Path) -> None:
    check = "import harbor_gym, sys; assert harbor_gym.__file__.startswith(sys.path[1])"
    assert run(f"{lines}\n{check}", installed, tmp_path) == ""


@pytest.mark.parametrize("imports", ["import gymnasium, harbor_gym", "import harbor_gym, gymnasium"])
def test_no_handler_and_no_finder_stays(imports: str, installed: Path, tmp_path: Path) -> None:
    check = """
    import signal, sys
    before = [*sys.meta_path], signal.getsignal(signal.SIGINT)
    {imports}
    assert ([*sys.meta_path], signal.getsignal(signal.SIGINT)) == before"""
    assert run(textwrap.dedent(check).format(imports=imports), installed, tmp_path) == ""


def test_importing_the_package_imports_no_more_than_gymnasium(installed: Path, tmp_path: Path) -> None:
    code = "import harbor_gym, sys; print(sorted({'harbor', 'pydantic', 'torch'} & set(sys.modules)))"
    assert run(code, installed, tmp_path) == "[]"


@pytest.mark.local
def test_the_four_lines_work_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    require_engine("local")
    code = f"""if True:
        import gymnasium as gym, harbor_gym
        env = gym.make("HarborTerminal-v0", task_dir="{ROOT}/tasks/devops_task", sandbox="local")
        obs, info = env.reset(seed=0)
        obs, reward, terminated, truncated, info = env.step("ls -la\\n")
        print(obs)
        print(reward, terminated, truncated)"""
    lines = run(code, installed, tmp_path).splitlines()
    assert lines[0].endswith("ls -la")
    assert any(line.endswith(" .bashrc") for line in lines)
    assert lines[-1] == "0.0 False False"
    assert list(tmp_path.iterdir()) == []
