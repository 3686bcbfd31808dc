"""The choice of the loop for a rollout."""

from enum import StrEnum


class Strategy(StrEnum):
    """Which loop plays a rollout, and where its tokens are recorded."""

    ENV = "env"
    """Our own loop, :func:`harbor_gym.run_episode`. No agent of Harbor's takes part."""

    GATEWAY = "gateway"
    """A Harbor trial whose agent speaks to a session of :mod:`harbor_gym.gateway`, which records the tokens."""

    DETAILS = "details"
    """A Harbor trial whose agent reports ``rollout_details``, as Terminus-2 does. A message that was cut at the
    sampler's token limit is missing there."""
