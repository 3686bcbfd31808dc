"""The plugin ``harbor-gym-verifiers``; an installation has this file as the module ``harbor_gym_verifiers``."""

from harbor_gym.adapters.verifiers.env import HarborTerminalEnv
from harbor_gym.adapters.verifiers.harness import HarborTerminalHarness
from harbor_gym.adapters.verifiers.taskset import HarborTerminalTaskset

__all__ = ["HarborTerminalEnv", "HarborTerminalHarness", "HarborTerminalTaskset"]
