"""Objects by name: those of a package, imported when first used, and ``module.path:attribute`` of a configuration."""

import ast
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from harbor_gym.errors import MissingDependencyError, UsageError


def lazy_names(
    package: str, file: str, *, also: Sequence[str] = (), requires: Sequence[str] = (), install: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__``, which imports a name's module at its first use, and its ``__dir__``.

    The names are those that the package imports in its one ``if TYPE_CHECKING``; ``__all__`` lists them.

    Args:
        package: The package's ``__name__``.
        file: The package's ``__file__``.
        also: Public names that the package defines itself.
        requires: Modules of an extra, without which no name can be used.
        install: The requirement that pip installs for them.

    Raises:
        AttributeError: By ``__getattr__``: the package has no such name.
        MissingDependencyError: By ``__getattr__``: the extra is not installed.
    """

    @cache
    def homes() -> dict[str, str]:
        body = ast.parse(Path(file).read_bytes()).body
        (typed,) = (node for node in body if isinstance(node, ast.If))
        imports = (node for node in typed.body if isinstance(node, ast.ImportFrom))
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def names() -> list[str]:
        return sorted([*homes(), *also])

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if missing := [module for module in requires if find_spec(module) is None]:
            raise MissingDependencyError(f"{package} needs {missing[0]}: pip install {install}")
        return getattr(import_module(homes()[name]), name)

    return get, names


def use_litellms_own_prices() -> None:
    """Keep litellm, which Harbor's agents use, from requesting prices from the internet. Call it before its import.

    The policy has no price, and without a network each process would wait for litellm's attempts.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def import_named(name: str, *, what: str) -> Any:
    """Return the callable object called ``module.path:attribute``.

    Args:
        name: The object's module and attribute.
        what: The object's purpose: the first words of the error.

    Raises:
        UsageError: It can't be imported, or can't be called.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{what} {name!r} is not written as module.path:name")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise UsageError(f"{what} {name!r} can't be imported: {exc}") from exc
    if not callable(found):
        raise UsageError(f"{what} {name!r} is a {type(found).__name__}, which can't be called")
    return found


@contextmanager
def replaced_names(module: ModuleType, **others: Any) -> Generator[None]:
    """Bind names of a module to other objects during the block."""
    before = {name: getattr(module, name) for name in others}
    vars(module).update(others)
    try:
        yield
    finally:
        vars(module).update(before)
