"""The loop that plays a rollout."""

from enum import StrEnum


class Strategy(StrEnum):
    """The loop that plays a rollout, and the source of its tokens."""

    ENV = "env"
    """This package's own loop, :func:`harbor_gym.run_episode`, without a Harbor agent."""

    GATEWAY = "gateway"
    """A Harbor trial whose agent calls a session of :mod:`harbor_gym.gateway`, which records the tokens."""

    DETAILS = "details"
    """A Harbor trial whose agent reports ``rollout_details``, as Terminus-2 does. These lack a message that was cut at
    the sampler's token limit."""
