"""The short name of :mod:`harbor_gym.adapters.harbor`."""

from harbor_gym.adapters.harbor import *  # noqa: F403  # all of its names
