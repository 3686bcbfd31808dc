"""Harbor's Docker environment with an owner, a shorter start and a guaranteed removal."""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.sandboxes.docker.environment import DockerEnvironment as DockerEnvironment

__getattr__, __dir__ = lazy_names(__name__, __file__)
