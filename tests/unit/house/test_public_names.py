"""``import harbor_gym`` has every public name, each from one home."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import harbor_gym
from harbor_gym import errors
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config

LAZY = sorted(
    str(file.relative_to(ROOT))
    for file in (ROOT / "harbor_gym").rglob("__init__.py")
    if "import lazy_names" in file.read_text()
)


def typed_names(file: str) -> set[str]:
    """Return the names that a type checker finds exported by a package: each is imported as itself."""
    (guarded,) = (node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.If))
    aliases = [alias for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {alias.name for alias in aliases if alias.asname == alias.name}


def test_packages_with_lazy_names_were_found() -> None:
    assert {"harbor_gym/__init__.py", "harbor_gym/adapters/trl/__init__.py"} <= set(LAZY)


@pytest.mark.parametrize("file", LAZY)
def test_a_type_checker_sees_what_an_importer_gets(file: str) -> None:
    module = importlib.import_module(".".join(Path(file).parent.parts))
    typed, names = typed_names(file), dir(module)
    assert names == sorted(module.__all__)
    assert typed <= set(names)
    assert {name for name in names if name not in vars(module)} <= typed
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = module.absent


@pytest.mark.parametrize("name", harbor_gym.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(harbor_gym, name) is not None


def test_every_error_is_public() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert kinds <= set(harbor_gym.__all__)


def test_the_page_of_types_imports_nothing_of_the_package_but_errors() -> None:
    tree = ast.parse((ROOT / "harbor_gym/types.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name and name.startswith("harbor_gym")} == {"harbor_gym.errors"}


async def test_a_step_is_four_values_with_names(tmp_path: Path) -> None:
    async with harbor_gym.AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
        await env.reset()
        result = await env.step([("true\n", 1.0)])
        assert isinstance(result, harbor_gym.StepResult)
        assert (result.reward, result.done, result.info["turn"]) == (0.0, False, 1)
        observation, reward, done, info = await env.step(COMPLETE)
        assert (type(observation), reward, done, info.get("end_reason")) == (str, 1.0, True, "completed")
