"""``import harbor_gym`` has every public name, each from one home."""

import ast
import importlib
import inspect
from importlib.util import resolve_name
from pathlib import Path

import pytest

import harbor_gym
from harbor_gym import errors, verifiers
from tests.helpers.docs_scripts import load_script
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config

LAZY = sorted(
    str(file.relative_to(ROOT))
    for folder in ("harbor_gym", "tests/helpers")
    for file in (ROOT / folder).rglob("*.py")
    if "    __getattr__, __dir__, __all__ = lazy_names(" in file.read_text(encoding="utf-8")
)

SHORT = sorted(path.name for path in (ROOT / "harbor_gym/adapters").iterdir() if (path / "__init__.py").is_file())


def package_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def guarded(file: str) -> ast.If:
    (statement,) = (node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.If))
    return statement


def typed_names(file: str) -> dict[str, str]:
    """Return the names that a type checker finds exported by a package, each imported as itself, with their modules."""
    imports = [node for node in guarded(file).body if isinstance(node, ast.ImportFrom)]
    aliases = [(alias, str(node.module)) for node in imports for alias in node.names]
    return {alias.name: module for alias, module in aliases if alias.asname == alias.name}


def table(file: str) -> dict[str, str]:
    """Return the names that are imported from a package when it runs, with their modules, but for its own names."""
    call = next(node for node in ast.walk(guarded(file)) if isinstance(node, ast.Call))
    homes: dict[str, str] = ast.literal_eval(call.args[1])
    modules = {resolve_name(home, package_of(file)): names for home, names in homes.items() if home != "."}
    return {name: module for module, names in modules.items() for name in names.split()}


def test_packages_with_lazy_names_were_found() -> None:
    assert {"harbor_gym/__init__.py", "harbor_gym/adapters/trl/__init__.py", "tests/helpers/tiny_trl.py"} <= set(LAZY)


@pytest.mark.parametrize("file", LAZY)
def test_a_type_checker_sees_what_an_importer_gets(file: str) -> None:
    module, typed = importlib.import_module(package_of(file)), typed_names(file)
    assert table(file) == typed
    assert dir(module) == sorted(vars(module)["__all__"])
    assert {name for name in dir(module) if name not in vars(module)} == typed.keys()
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = module.absent


@pytest.mark.parametrize("name", SHORT)
def test_every_adapter_has_a_short_name(name: str) -> None:
    module, adapter = (importlib.import_module(f"harbor_gym.{place}") for place in (name, f"adapters.{name}"))
    assert set(vars(adapter)["__all__"]) <= set(dir(module))
    assert getattr(module, "__getattr__", None) is getattr(adapter, "__getattr__", None)
    assert f"| `harbor_gym.{name}` |" in (ROOT / "docs/api.md").read_text(encoding="utf-8")


DOCUMENTED = ("samplers", "gateway", "tasks", "evaluation", "report", "checking", "testing", "cluster", *SHORT)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_of_a_package_is_on_the_page_of_the_api(name: str) -> None:
    page = load_script("api_page").expanded((ROOT / "docs/api.md").read_text(encoding="utf-8"))
    public = set(dir(harbor_gym)) | {"PLUGIN_ID"}  # those of the package itself are listed by module
    package = importlib.import_module(f"harbor_gym.adapters.{name}" if name in SHORT else f"harbor_gym.{name}")
    for one in set(vars(package)["__all__"]) - public:
        assert f"heading: harbor_gym.{name}.{one} " in page, one


def test_a_short_name_has_what_the_adapter_defines_itself_without_its_extra() -> None:
    assert verifiers.PLUGIN_ID == "harbor-gym-verifiers"


@pytest.mark.parametrize("name", dir(harbor_gym))
def test_every_name_is_there(name: str) -> None:
    assert getattr(harbor_gym, name) is not None


def test_every_error_is_public() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert kinds <= set(dir(harbor_gym))


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
