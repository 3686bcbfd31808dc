"""Settings for which SkyRL's own configuration has no place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from harbor.models.trial.config import AgentConfig
from pydantic import ValidationError
from skyrl.train.config import BaseConfig, GeneratorConfig

from harbor_gym._runtime.harbor_versions import require_server
from harbor_gym.adapters.harbor.agents import unchecked_agent
from harbor_gym.config import TerminalEnvConfig, describe_problems, require_fields_of_own_loop
from harbor_gym.errors import UsageError
from harbor_gym.types import DEFAULT_SANDBOX, TrainSegments


@dataclass
class HarborSettings(BaseConfig):
    """Sandbox, agent and retries. Budgets in turns and tokens are SkyRL's: ``generator.max_turns``,
    ``generator.max_input_length`` and ``generator.sampling_params.max_generate_length`` (of one message).
    """

    tasks: list[str] = field(default_factory=list[str])
    """Task sources of the training set, as :func:`harbor_gym.tasks.resolve_tasks` reads them. Empty:
    ``data.train_data`` is read, as :func:`write_dataset` writes it."""

    eval_tasks: list[str] = field(default_factory=list[str])
    """Task sources of the evaluation set. Empty: ``data.val_data`` is read."""

    sandbox: str = DEFAULT_SANDBOX
    """``local``, a Harbor environment type by name, or ``module.path:Class``."""

    sandbox_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the sandbox's class."""

    agent: str | None = None
    """A name of :data:`harbor_gym.gateway.agents.AGENTS`, or the ``module.path:Class`` of any agent of Harbor's, which
    then speaks to the gateway. None: the policy writes messages in ``env.action_format``."""

    agent_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the agent. One that is not listed has ``{gateway_url}`` where its base URL belongs."""

    train_segments: str = "main"
    """As :class:`harbor_gym.adapters.harbor.RolloutInterface` takes it; ``all`` needs step-wise rows, as an episode has
    several then."""

    env: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of :class:`harbor_gym.TerminalEnvConfig`. Only without an agent."""

    time_limit_sec: float | None = None
    """Seconds of an episode: of terminal time without an agent, of the whole conversation with one."""

    reward_key: str | None = None
    """Which of the verifier's rewards is the scalar; None is ``reward``, or the only one there is."""

    reward_function: str | None = None
    """As ``TerminalEnvConfig.reward_function``; instead of ``reward_key``."""

    zero_reward_on_limit: bool = False
    """As ``TerminalEnvConfig.zero_reward_on_limit``."""

    harbor_server: str | None = None
    """As ``TerminalEnvConfig.harbor_server``; only with an agent."""

    trials_dir: str | None = None
    """As ``TerminalEnvConfig.trials_dir``."""

    max_retries: int = 1
    """Fresh sandboxes that may follow one that the infrastructure lost, of each episode."""

    n_concurrent: int = 64
    """Episodes at the same time, of all calls together."""

    max_lost_calls: int = 3
    """Calls of ``generate`` in a row without a single verdict after which the next one raises: a trainer would go on
    without learning, or wait for ever."""


def agent_config(settings: HarborSettings) -> AgentConfig | None:
    """Return Harbor's configuration of the agent; None for the policy's own loop."""
    return None if settings.agent is None else unchecked_agent(settings.agent, settings.agent_kwargs)


def check_settings(settings: HarborSettings, generator: GeneratorConfig) -> None:
    """Refuse what can't be used, before anything starts.

    Raises:
        UsageError: A number is out of range, a field is unknown, or SkyRL is configured for something that can't be
            recorded here.
    """
    for name, least in {"max_retries": 0, "n_concurrent": 1, "max_lost_calls": 1}.items():
        if getattr(settings, name) < least:
            raise UsageError(f"harbor.{name} must be at least {least}, got {getattr(settings, name)}")
    if settings.agent is not None and settings.env:
        raise UsageError("harbor.env configures the policy's own loop, and harbor.agent replaces that: set one of them")
    if settings.agent is None and settings.agent_kwargs:
        raise UsageError("harbor.agent_kwargs are for harbor.agent, which is not set")
    if settings.harbor_server is not None:
        if settings.agent is None:
            raise UsageError("harbor.harbor_server runs the episodes of harbor.agent, which is not set")
        require_server()
    if settings.train_segments not in get_args(TrainSegments):
        raise UsageError(f"harbor.train_segments is main or all, not {settings.train_segments!r}")
    if settings.train_segments == "all" and (settings.agent is None or not generator.step_wise_trajectories):
        raise UsageError(
            "harbor.train_segments=all trains the side calls of harbor.agent, and needs "
            "generator.step_wise_trajectories=true"
        )
    _check_env(settings)
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


def _check_env(settings: HarborSettings) -> None:
    if "task_dir" in settings.env:
        raise UsageError("harbor.env.task_dir can't be set: each row of the dataset has its own")
    own: dict[str, Any] = {"sandbox": settings.sandbox, "sandbox_options": settings.sandbox_options, **settings.env}
    try:
        config = TerminalEnvConfig(task_dir=Path(), **own)
    except ValidationError as exc:
        raise UsageError(f"harbor.env can't be used: {describe_problems(exc)}") from exc
    require_fields_of_own_loop(config)
