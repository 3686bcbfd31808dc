"""``import harbor_gym`` has every public name, each from one home, and old homes still have theirs."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import harbor_gym
from harbor_gym import errors, types
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config

OLD_HOMES = {
    "harbor_gym.tokens": ("ChatCodec", "ChatMessage", "StopReason", "TokenStep", "Turn"),
    "harbor_gym.rollout": ("Rollout", "Sample", "Sampler", "TokenTransition"),
}


LAZY = sorted(
    str(file.relative_to(ROOT))
    for file in (ROOT / "harbor_gym").rglob("__init__.py")
    if "import lazy_names" in file.read_text()
)


def read_lazy(file: str) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return what a type checker sees in a package and what an importer gets: each name with its module."""
    tree = ast.parse((ROOT / file).read_text())
    package = ".".join(Path(file).parent.parts)
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    (call,) = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and "lazy_names" in ast.dump(node.func))
    homes: dict[str, tuple[str, ...]] = ast.literal_eval(call.args[1])
    return (
        {(alias.name, str(node.module)) for node in imports for alias in node.names},
        {(name, f"{package}.{home}") for home, names in homes.items() for name in names},
    )


def test_packages_with_lazy_names_were_found() -> None:
    assert {"harbor_gym/__init__.py", "harbor_gym/adapters/trl/__init__.py"} <= set(LAZY)


@pytest.mark.parametrize("file", LAZY)
def test_a_type_checker_sees_what_an_importer_gets(file: str) -> None:
    typed, homes = read_lazy(file)
    assert typed == homes
    module = importlib.import_module(".".join(Path(file).parent.parts))
    assert {name for name, _ in typed} | set(module.__all__) == set(module.__all__) == set(dir(module))
    assert {name for name in module.__all__ if name not in vars(module)} <= {name for name, _ in typed}
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = module.absent


@pytest.mark.parametrize("name", harbor_gym.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(harbor_gym, name) is not None


def test_every_error_is_public() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert kinds <= set(harbor_gym.__all__)


@pytest.mark.parametrize("module", OLD_HOMES)
def test_old_import_places_have_the_same_objects(module: str) -> None:
    for name in OLD_HOMES[module]:
        assert getattr(importlib.import_module(module), name) is getattr(types, name)


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
