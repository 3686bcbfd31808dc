"""Token-exact rollouts of Harbor's tasks, with any of Harbor's agents or with our own policy loop."""

from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.adapters.harbor.results import details_sequences
from harbor_gym.adapters.harbor.server import HarborServer
from harbor_gym.adapters.harbor.strategy import Strategy

__all__ = ["HarborServer", "RolloutInterface", "Strategy", "details_sequences"]
