"""Harbor's Docker environment with an owner, a short start and a certain end."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harbor_gym.sandboxes.docker.environment import DockerEnvironment

__all__ = ["DockerEnvironment"]


def __getattr__(name: str) -> Any:
    if name == "DockerEnvironment":
        from harbor_gym.sandboxes.docker.environment import DockerEnvironment

        return DockerEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
