"""The settings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harbor_gym._runtime.files import StrPath
from harbor_gym.config import RewardFunction
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.episode.grading.rewards import reward_function

if TYPE_CHECKING:
    from harbor.models.trial.config import EnvironmentConfig


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The settings of a check."""

    environment: EnvironmentConfig
    """The sandbox, as :func:`harbor_gym.sandboxes.environment_config` returns it."""

    trials_dir: StrPath
    """Directory for the trials' folders; the caller owns it."""

    repeat: int = 2
    """Runs of the oracle and of the agent that does nothing, each in a fresh sandbox; 1 compares nothing."""

    try_exploits: bool = True
    """Whether to try reward hacking."""

    reward_key: str | None = None
    """As ``TerminalEnvConfig.reward_key``."""

    reward_function: str | RewardFunction | None = None
    """As ``TerminalEnvConfig.reward_function``."""

    verify_paths: VerifyPaths = "auto"
    """Paths of a pristine view to check too. ``auto``: those that the task declares, else proposed ones, derived from
    the files that the solution wrote; ``off``: none."""

    stop_timeout_sec: float = 60.0
    """Seconds that Harbor gets to stop a sandbox."""

    @property
    def scalar(self) -> RewardFunction:
        """Return the function that makes one reward of a verifier's keys.

        Raises:
            UsageError: Both a key and a function are given, or there is no such function.
        """
        return reward_function(self.reward_key, self.reward_function)
