"""Objects by name: ``module.path:attribute``, as a command line or a configuration writes them."""

from importlib import import_module
from typing import Any

from harbor_gym.errors import UsageError


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
