"""A sandbox without a daemon: namespaces and an overlay for each, held by a supervisor of ours."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harbor_gym.sandboxes.local.environment import LocalEnvironment

__all__ = ["LocalEnvironment"]


def __getattr__(name: str) -> Any:
    if name == "LocalEnvironment":
        from harbor_gym.sandboxes.local.environment import LocalEnvironment

        return LocalEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
