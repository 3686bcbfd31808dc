"""The short name of :mod:`harbor_gym.adapters.tinker`."""

from harbor_gym.adapters.tinker import *  # noqa: F403  # all of its names
