"""Training runs with tinker-cookbook's RL loop: its configuration, the checks before its start, and the run itself.

Importing this package is fast and needs no extra; running needs the extra ``tinker``.
"""

from harbor_gym.adapters.tinker.training.config import Backend, LogDirExists, TrainConfig

__all__ = ["Backend", "LogDirExists", "TrainConfig"]
