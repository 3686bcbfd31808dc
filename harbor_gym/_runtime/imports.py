"""Objects by name: those of a package, imported when first used, and ``module.path:attribute`` of a configuration."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from harbor_gym._runtime.errors import MissingDependencyError, UsageError


def lazy_names(
    package: str, homes: Mapping[str, str], *, requires: Sequence[str] = (), install: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, which imports a name's module at its first use, ``__dir__`` and ``__all__``.

    Type checkers take the same names from the package's ``if TYPE_CHECKING``; a test holds the two together.

    Args:
        package: The package's ``__name__``.
        homes: Module → its names, separated by spaces. A module of the package begins with a dot; ``"."`` is the
            package itself, for names that it defines.
        requires: Modules of an extra, without which no name of another module can be used.
        install: The requirement that pip installs for them.

    Raises:
        AttributeError: By ``__getattr__``: the package has no such name.
        MissingDependencyError: By ``__getattr__``: the extra is not installed.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    every = sorted(home_of)

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        if home != "." and (missing := [module for module in requires if find_spec(module) is None]):
            raise MissingDependencyError(f"{package} needs {missing[0]}: pip install {install}")
        return getattr(import_module(home, package), name)

    return get, every.copy, every


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


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's ``module.path:attribute``, by which :func:`import_named` finds one at a top level."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


@contextmanager
def replaced_names(module: ModuleType, **others: Any) -> Generator[None]:
    """Bind names of a module to other objects during the block."""
    before = {name: getattr(module, name) for name in others}
    vars(module).update(others)
    try:
        yield
    finally:
        vars(module).update(before)
