"""Objects by name: those of a package, imported when first used, and ``module.path:attribute`` of a configuration."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from harbor_gym.errors import MissingDependencyError, UsageError


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], *, requires: Sequence[str] = (), install: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__``, which imports a name's module at its first use, and its ``__dir__``.

    Args:
        package: Its ``__name__``. It has an ``__all__``, and imports the same names for type checkers.
        homes: Submodule → the names that come from it.
        requires: Modules of an extra, without which no name can be used.
        install: What pip installs for them.

    Raises:
        AttributeError: By ``__getattr__``: the package has no such name.
        MissingDependencyError: By ``__getattr__``: the extra is not installed.
    """
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if missing := [module for module in requires if find_spec(module) is None]:
            raise MissingDependencyError(f"{package} needs {missing[0]}: pip install {install}")
        return getattr(import_module(home_of[name]), name)

    return get, lambda: sorted(vars(sys.modules[package])["__all__"])


def import_named(name: str, *, what: str) -> Any:
    """Return the callable object called ``module.path:attribute``.

    Args:
        name: Where it is.
        what: What it is for: the first words of the error.

    Raises:
        UsageError: It can't be imported, or is nothing to call.
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
