"""Settings that SkyRL's own configuration lacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field
from skyrl.train.config import BaseConfig, GeneratorConfig

from harbor_gym.adapters.harbor.settings import EpisodeSettings
from harbor_gym.config import AgentEpisodeConfig, aliases, require_one_conversation
from harbor_gym.errors import UsageError


@aliases.accepting(aliases.TRAINER)
@dataclass
class HarborSettings(EpisodeSettings, BaseConfig):
    """Tasks, episodes and retries.

    Budgets in turns and tokens are SkyRL's: ``generator.max_turns``, ``generator.max_input_length`` and
    ``generator.sampling_params.max_generate_length`` (of one message).
    """

    tasks: list[str] = field(default_factory=list[str])
    """Sources of the training tasks, see :func:`harbor_gym.tasks.resolve_tasks`. If empty, ``data.train_data`` is read,
    a file of :func:`write_dataset`."""

    eval_tasks: list[str] = field(default_factory=list[str])
    """Sources of the evaluation tasks. If empty, ``data.val_data`` is read."""

    max_lost_calls: Annotated[int, Field(ge=1)] = 3
    """Successive calls of ``generate`` without any verdict after which it raises; otherwise the trainer would continue
    without learning, or wait forever."""

    max_token_staleness: Annotated[int | None, Field(ge=0)] = None
    """Tokens more weight versions than this behind the end of their ``generate`` call are not trained on."""

    def oldest(self, newest: int | None) -> int | None:
        """Return the oldest version to train on, given the engine's newest version; None is any."""
        return None if newest is None or self.max_token_staleness is None else newest - self.max_token_staleness


def check_settings(settings: HarborSettings, generator: GeneratorConfig) -> HarborSettings:
    """Check the settings before anything starts.

    Returns:
        The settings, with values converted to the fields' types.

    Raises:
        UsageError: A number is out of range, a field is unknown, or SkyRL is configured for an unsupported feature.
    """
    settings = settings.checked("the section harbor")
    episode = settings.episode
    has_side_calls = isinstance(episode, AgentEpisodeConfig) and episode.train_segments == "all"
    if has_side_calls and not generator.step_wise_trajectories:
        raise UsageError(
            "harbor.env.train_segments=all makes several sequences of an episode: it needs "
            "generator.step_wise_trajectories=true"
        )
    if not generator.step_wise_trajectories:
        require_one_conversation(episode, "SkyRL without generator.step_wise_trajectories")
    engine = generator.inference_engine
    refused: Mapping[str, bool] = {
        "batched": generator.batched,
        "vision_language_generator": generator.vision_language_generator,
        "inference_engine.enable_return_sample_support_set": engine.enable_return_sample_support_set,
    }
    for name, is_set in refused.items():
        if is_set:
            raise UsageError(f"generator.{name} is not supported by HarborTerminalGenerator: set it to false")
    if engine.enable_return_routed_experts and (
        isinstance(episode, AgentEpisodeConfig) or generator.step_wise_trajectories
    ):
        raise UsageError(
            "generator.inference_engine.enable_return_routed_experts is for our own loop with a row per episode: leave "
            "harbor.env.agent out, and set generator.step_wise_trajectories to false"
        )
    if not generator.use_conversation_multi_turn:
        raise UsageError("generator.use_conversation_multi_turn must be true: an episode is a conversation")
    if generator.max_input_length is None:
        raise UsageError("generator.max_input_length is not set: it is the longest prompt of a turn, in tokens")
    return settings
