"""Token-exact rollouts of Harbor's tasks, with any of Harbor's agents or with our own policy loop."""

from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.adapters.harbor.results import details_sequences
from harbor_gym.adapters.harbor.server import HarborServer

__all__ = ["HarborServer", "RolloutInterface", "details_sequences"]
