"""Settings for which verl's own configuration has no place: the entries of a loop in its YAML file."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from harbor_gym.adapters.harbor.settings import EpisodeSettings


@dataclass
class LoopSettings(EpisodeSettings):
    """Of both loops. Budgets of an episode are verl's: ``rollout.prompt_length``, ``rollout.response_length``,
    ``rollout.max_model_len`` and ``rollout.multi_turn.max_assistant_turns``. ``agent`` is for
    :class:`HarborAgentLoop`, which plays ``terminus-2`` without it.
    """

    max_answer_tokens: Annotated[int, Field(gt=0)] = 2048
    """Tokens of one message."""
