"""The Gymnasium room: ``gym.make("HarborTerminal-v0")``, synchronous and vectorised. It translates and decides nothing.

What a name needs is imported when the name is first used.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.adapters.gymnasium.env import HarborTerminalEnv
    from harbor_gym.adapters.gymnasium.registration import ENV_ID, register
    from harbor_gym.adapters.gymnasium.text import TerminalText
    from harbor_gym.adapters.gymnasium.vector import HarborTerminalVectorEnv
    from harbor_gym.adapters.gymnasium.wrappers import KeystrokesToTerminus, TokenizedText, terminus_message

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "env": ("HarborTerminalEnv",),
        "registration": ("ENV_ID", "register"),
        "text": ("TerminalText",),
        "vector": ("HarborTerminalVectorEnv",),
        "wrappers": ("KeystrokesToTerminus", "TokenizedText", "terminus_message"),
    },
)
