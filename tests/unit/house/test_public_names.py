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


def typed_names() -> set[str]:
    """Return what a type checker sees in ``harbor_gym``."""
    tree = ast.parse((ROOT / "harbor_gym/__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_a_type_checker_sees_what_an_importer_gets() -> None:
    assert typed_names() | {"__version__"} == set(harbor_gym.__all__) == set(dir(harbor_gym))


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
