"""The pay of an episode: its reward by the task's own rule, and each transition's share of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from harbor.models.task.config import MultiStepRewardStrategy
from harbor.models.task.task import Task

from harbor_gym.episode.grading.rewards import RewardFunction
from harbor_gym.types import EndReason


@dataclass
class RewardAccount:
    """The pay of one episode. Its transitions' pay sums to the episode's reward, however the episode ends."""

    choose: RewardFunction
    """Makes the scalar of what a verifier wrote."""

    is_zero_on_limit: bool = False
    """Whether an episode that a budget cut short is paid nothing above 0."""

    step_share: float = 0.0
    """What share of a step's own reward is paid when another step follows; 0 pays all at the end."""

    paid: float = 0.0
    """Sum of what was paid so far."""

    def pay_step(self, rewards: Mapping[str, float]) -> float:
        """Return the pay of a transition that ended a step and opened the next one.

        Args:
            rewards: What the step's verifier wrote.

        Raises:
            VerifierError: There is no scalar among it.
        """
        if not self.step_share:
            return 0.0
        pay = self.step_share * self.choose(rewards)
        self.paid += pay
        return pay

    def settle(self, rewards: Mapping[str, float], reason: EndReason) -> float:
        """Return the episode's reward.

        Args:
            rewards: What Harbor made of the verdicts; none of a sandbox that its policy broke, which is worth 0.
            reason: Why the episode ended.

        Raises:
            VerifierError: There is no scalar among it.
        """
        is_worth_nothing = not rewards and reason is EndReason.SANDBOX_BROKEN
        reward = 0.0 if is_worth_nothing else self.choose(rewards)
        return min(reward, 0.0) if self.is_capped(reason) else reward

    def is_capped(self, reason: EndReason) -> bool:
        """Return whether an episode that ended so is paid nothing above 0."""
        return self.is_zero_on_limit and reason.is_truncation


def step_share(task: Task) -> float:
    """Return what a step's reward is worth in a multi-step task's: its share of the mean, or nothing before the last.

    Source: Harbor's ``multi_step_reward_strategy``.
    """
    is_final = task.config.multi_step_reward_strategy is MultiStepRewardStrategy.FINAL
    return 0.0 if is_final or not task.config.steps else 1 / len(task.config.steps)
