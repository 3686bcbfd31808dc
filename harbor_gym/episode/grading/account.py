"""The reward of an episode by the task's own rule, and each transition's share of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from harbor.models.task.config import MultiStepRewardStrategy
from harbor.models.task.task import Task

from harbor_gym.config import EpisodeConfig
from harbor_gym.episode.grading import rewards
from harbor_gym.episode.grading.rewards import RewardFunction
from harbor_gym.errors import VerifierError
from harbor_gym.types import EndReason


@dataclass
class RewardAccount:
    """The rewards of one episode's transitions, which sum to the episode's reward however it ends."""

    choose: RewardFunction
    """Makes the scalar of a verifier's rewards."""

    is_zero_on_limit: bool = False
    """Whether an episode that a budget cut short gets no reward above 0."""

    step_share: float = 0.0
    """The share of a step's reward that is paid when another step follows; 0 pays all at the end."""

    paid: float = 0.0
    """Sum of the rewards paid so far."""

    @classmethod
    def of(cls, config: EpisodeConfig) -> Self:
        """Return the account of an episode that is paid as a configuration says.

        Raises:
            UsageError: The reward's key or function can't be used.
        """
        return cls(rewards.reward_function(config.reward_key, config.reward_function), config.zero_reward_on_limit)

    def pay_step(self, rewards: Mapping[str, float]) -> float:
        """Return the reward of a transition that ended a step and opened the next one.

        Args:
            rewards: The step's rewards by the verifier.

        Raises:
            VerifierError: No scalar can be made of them.
        """
        if not self.step_share:
            return 0.0
        pay = self.step_share * self.choose(rewards)
        self.paid += pay
        return pay

    def settle(self, rewards: Mapping[str, float], reason: EndReason) -> float:
        """Return the episode's reward.

        Args:
            rewards: The verdicts combined by Harbor; for a sandbox that its policy broke, those before it.
            reason: Why the episode ended.

        Raises:
            VerifierError: No scalar can be made of them; where the policy broke its sandbox, that counts as 0.
        """
        try:
            reward = self.choose(rewards) if rewards or reason is not EndReason.SANDBOX_BROKEN else 0.0
        except VerifierError:
            if reason is not EndReason.SANDBOX_BROKEN:
                raise
            reward = 0.0
        return min(reward, 0.0) if self.is_capped(reason) else reward

    def is_capped(self, reason: EndReason) -> bool:
        """Return whether an episode that ended for ``reason`` gets no reward above 0."""
        return self.is_zero_on_limit and reason.is_truncation


def step_share(task: Task) -> float:
    """Return a step's share of a multi-step task's mean reward; 0 if only the last step counts, or there are no steps.

    Source: Harbor's ``multi_step_reward_strategy``.
    """
    is_final = task.config.multi_step_reward_strategy is MultiStepRewardStrategy.FINAL
    return 0.0 if is_final or not task.config.steps else 1 / len(task.config.steps)
