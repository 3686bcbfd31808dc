"""Registers the environment with Gymnasium.

Since version 1.0 Gymnasium reads no entry points: a package registers its environments when it is imported.
"""

import gymnasium

ENV_ID = "HarborTerminal-v0"
"""The environment's id for ``gym.make`` and ``gym.make_vec``."""


def register() -> None:
    """Register the environment with Gymnasium, as ``import harbor_gym`` does. Idempotent."""
    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(
        id=ENV_ID,
        entry_point="harbor_gym.adapters.gymnasium.env:HarborTerminalEnv",
        vector_entry_point="harbor_gym.adapters.gymnasium.vector:HarborTerminalVectorEnv",
        nondeterministic=True,  # a terminal shows the time and process ids
    )
