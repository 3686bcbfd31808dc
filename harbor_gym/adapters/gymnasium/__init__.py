"""The Gymnasium adapter: ``gym.make("HarborTerminal-v0")`` and ``gym.make_vec``.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.gymnasium.env import HarborTerminalEnv as HarborTerminalEnv
    from harbor_gym.adapters.gymnasium.registration import ENV_ID as ENV_ID
    from harbor_gym.adapters.gymnasium.registration import register as register
    from harbor_gym.adapters.gymnasium.text import TerminalText as TerminalText
    from harbor_gym.adapters.gymnasium.vector import HarborTerminalVectorEnv as HarborTerminalVectorEnv
    from harbor_gym.adapters.gymnasium.wrappers import KeystrokesToTerminus as KeystrokesToTerminus
    from harbor_gym.adapters.gymnasium.wrappers import TokenizedText as TokenizedText
    from harbor_gym.adapters.gymnasium.wrappers import terminus_message as terminus_message
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".env": "HarborTerminalEnv",
            ".registration": "ENV_ID register",
            ".text": "TerminalText",
            ".vector": "HarborTerminalVectorEnv",
            ".wrappers": "KeystrokesToTerminus TokenizedText terminus_message",
        },
    )
