"""Harbor tasks as reinforcement-learning environments.

Importing this package costs little: what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harbor_gym.adapters.gymnasium.registration import register_when_imported

__version__ = "0.1.0"

if TYPE_CHECKING:
    from harbor_gym.config import TerminalConfig, TerminalEnvConfig
    from harbor_gym.env import AsyncTerminalGymEnv
    from harbor_gym.errors import HarborGymError
    from harbor_gym.types import Command, EndReason, EpisodeInfo

_HOMES = {
    "AsyncTerminalGymEnv": "harbor_gym.env",
    "Command": "harbor_gym.types",
    "EndReason": "harbor_gym.types",
    "EpisodeInfo": "harbor_gym.types",
    "HarborGymError": "harbor_gym.errors",
    "TerminalConfig": "harbor_gym.config",
    "TerminalEnvConfig": "harbor_gym.config",
}

__all__ = [
    "AsyncTerminalGymEnv",
    "Command",
    "EndReason",
    "EpisodeInfo",
    "HarborGymError",
    "TerminalConfig",
    "TerminalEnvConfig",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


register_when_imported()
