"""Harbor's tasks in, token-exact rollouts out: any agent of Harbor's, or our own policy loop."""

from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.adapters.harbor.results import details_sequences
from harbor_gym.adapters.harbor.rollout import Strategy, TokenRollout

__all__ = ["RolloutInterface", "Strategy", "TokenRollout", "details_sequences"]
