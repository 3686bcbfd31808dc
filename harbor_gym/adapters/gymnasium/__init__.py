"""The Gymnasium room: ``gym.make("HarborTerminal-v0")``, synchronous and vectorised. It translates and decides nothing.

Importing this package does not import gymnasium: what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harbor_gym.adapters.gymnasium.env import HarborTerminalEnv
    from harbor_gym.adapters.gymnasium.registration import ENV_ID, register
    from harbor_gym.adapters.gymnasium.text import TerminalText
    from harbor_gym.adapters.gymnasium.vector import HarborTerminalVectorEnv
    from harbor_gym.adapters.gymnasium.wrappers import KeystrokesToTerminus, TokenizedText, terminus_message

_HOMES = {
    "ENV_ID": "registration",
    "HarborTerminalEnv": "env",
    "HarborTerminalVectorEnv": "vector",
    "KeystrokesToTerminus": "wrappers",
    "TerminalText": "text",
    "TokenizedText": "wrappers",
    "register": "registration",
    "terminus_message": "wrappers",
}

__all__ = [
    "ENV_ID",
    "HarborTerminalEnv",
    "HarborTerminalVectorEnv",
    "KeystrokesToTerminus",
    "TerminalText",
    "TokenizedText",
    "register",
    "terminus_message",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
