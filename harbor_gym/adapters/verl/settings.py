"""Settings that verl's own configuration lacks: the entries of a loop in its YAML file."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from harbor_gym.adapters.harbor.settings import EpisodeSettings
from harbor_gym.config import aliases


@aliases.accepting(aliases.TRAINER)
@dataclass
class LoopSettings(EpisodeSettings):
    """The settings of both loops.

    Budgets of an episode are verl's: ``rollout.prompt_length``, ``rollout.response_length``, ``rollout.max_model_len``
    and ``rollout.multi_turn.max_assistant_turns``. ``env.agent`` is for :class:`HarborAgentLoop`, whose default is
    ``terminus-2``.
    """

    max_answer_tokens: Annotated[int, Field(gt=0)] = 2048
    """Longest message, in tokens."""
