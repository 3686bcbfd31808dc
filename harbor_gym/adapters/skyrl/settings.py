"""Settings for which SkyRL's own configuration has no place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field
from skyrl.train.config import BaseConfig, GeneratorConfig

from harbor_gym.adapters.harbor.settings import EpisodeSettings
from harbor_gym.errors import UsageError
from harbor_gym.types import TrainSegments


@dataclass
class HarborSettings(EpisodeSettings, BaseConfig):
    """Sandbox, agent and retries. Budgets in turns and tokens are SkyRL's: ``generator.max_turns``,
    ``generator.max_input_length`` and ``generator.sampling_params.max_generate_length`` (of one message).
    """

    tasks: list[str] = field(default_factory=list[str])
    """Task sources of the training set, as :func:`harbor_gym.tasks.resolve_tasks` reads them. Empty:
    ``data.train_data`` is read, as :func:`write_dataset` writes it."""

    eval_tasks: list[str] = field(default_factory=list[str])
    """Task sources of the evaluation set. Empty: ``data.val_data`` is read."""

    train_segments: TrainSegments = "main"
    """As :class:`harbor_gym.adapters.harbor.RolloutInterface` takes it; ``all`` needs step-wise rows, as an episode has
    several then."""

    max_lost_calls: Annotated[int, Field(ge=1)] = 3
    """Calls of ``generate`` in a row without a single verdict after which the next one raises: a trainer would go on
    without learning, or wait for ever."""

    max_token_staleness: Annotated[int | None, Field(ge=0)] = None
    """Train no token that was sampled more versions of the weights before the end of its call of ``generate``."""

    def oldest(self, newest: int | None) -> int | None:
        """Return the oldest version that is trained, of the newest that the engine tells; None is any."""
        return None if newest is None or self.max_token_staleness is None else newest - self.max_token_staleness


def check_settings(settings: HarborSettings, generator: GeneratorConfig) -> HarborSettings:
    """Refuse what can't be used, before anything starts.

    Returns:
        The settings, each of its field's type.

    Raises:
        UsageError: A number is out of range, a field is unknown, or SkyRL is configured for something that can't be
            recorded here.
    """
    settings = settings.checked("the section harbor")
    if settings.train_segments == "all" and (settings.agent is None or not generator.step_wise_trajectories):
        raise UsageError(
            "harbor.train_segments=all trains the side calls of harbor.agent, and needs "
            "generator.step_wise_trajectories=true"
        )
    engine = generator.inference_engine
    refused: Mapping[str, bool] = {
        "batched": generator.batched,
        "vision_language_generator": generator.vision_language_generator,
        "inference_engine.enable_return_routed_experts": engine.enable_return_routed_experts,
        "inference_engine.enable_return_sample_support_set": engine.enable_return_sample_support_set,
    }
    for name, is_set in refused.items():
        if is_set:
            raise UsageError(f"generator.{name} is not supported by HarborTerminalGenerator: set it to false")
    if not generator.use_conversation_multi_turn:
        raise UsageError("generator.use_conversation_multi_turn must be true: an episode is a conversation")
    if generator.max_input_length is None:
        raise UsageError("generator.max_input_length is not set: it is the longest prompt of a turn, in tokens")
    return settings
