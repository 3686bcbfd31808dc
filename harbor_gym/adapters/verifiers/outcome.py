"""An episode's outcome in verifiers' terms: its stop condition, rewards and metrics, or the error of a lost one."""

from collections.abc import Mapping, Sequence

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict, Field
from verifiers.v1.errors import HarnessError, InterceptionError, RolloutError, SandboxError, TaskError

from harbor_gym.config import EpisodeConfig
from harbor_gym.errors import (
    AgentFailedError,
    HarborGymError,
    SamplerError,
    TerminalError,
    VerifierError,
)
from harbor_gym.errors import SandboxError as OurSandboxError
from harbor_gym.errors import TaskError as OurTaskError
from harbor_gym.outcomes import classify
from harbor_gym.types import EndReason, Rollout

DEFAULT_REWARD = "reward"
"""Name of the reward if the verifier writes several keys and none is chosen."""

_INFO_KEY = "harbor_gym"
"""Key of the outcome in ``Trace.info``."""

_STOP_WORDS = {
    EndReason.MAX_TURNS: "max_turns",
    EndReason.CONTEXT_OVERFLOW: "max_total_tokens",
    EndReason.MAX_TOKENS: "max_output_tokens",
}
"""verifiers' stop conditions for truncations (``Trace.is_truncated``). The time limit is its ``agent_timeout``."""

_BUDGETS = {
    "max_turns": EndReason.MAX_TURNS,
    "max_input_tokens": EndReason.CONTEXT_OVERFLOW,
    "max_total_tokens": EndReason.CONTEXT_OVERFLOW,
    "max_output_tokens": EndReason.MAX_TOKENS,
}

_ORDINARY_ENDS = (EndReason.COMPLETED, EndReason.NO_TOOL_CALL)

_ERRORS: Sequence[tuple[type[HarborGymError], type[RolloutError]]] = (
    (OurSandboxError, SandboxError),
    (TerminalError, SandboxError),
    (VerifierError, TaskError),
    (OurTaskError, TaskError),
    (SamplerError, InterceptionError),
    (AgentFailedError, HarnessError),
)
"""Our error → verifiers' error, for rules of ``retries``. Other errors become a ``HarnessError``."""


class Outcome(BaseModel):
    """The outcome of a verified episode, as plain data on the trace."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    end_reason: EndReason
    """Why the episode ended."""

    reward: float
    """The task's reward; for a multi-step task by its own strategy."""

    reward_name: str
    """The verifier's key of the reward; ``reward`` if a function combines several keys."""

    metrics: dict[str, float] = Field(default_factory=dict)
    """The verifier's other keys as ``verifier/…``, also per step of a multi-step task, and the episode's metrics."""

    @classmethod
    def of(cls, rollout: Rollout, config: EpisodeConfig) -> "Outcome":
        """Return the outcome of an episode.

        Raises:
            HarborGymError: The infrastructure lost the episode.
        """
        if rollout.error is not None:
            raise rollout.error
        assert rollout.reward is not None
        rewards = rollout.rewards
        name = _reward_name(rewards, config)
        is_combined = config.reward_function is not None
        others = {key: value for key, value in rewards.items() if key != name or is_combined}
        verdicts = {f"verifier/{key}": value for key, value in others.items()}
        for number, written in enumerate(rollout.step_rewards, start=1):
            verdicts |= {f"verifier/step_{number}/{key}": value for key, value in written.items()}
        return cls(
            end_reason=rollout.end_reason,
            reward=rollout.reward,
            reward_name=name,
            metrics={**verdicts, **rollout.metrics},
        )

    @classmethod
    def of_trace(cls, trace: vf.Trace) -> "Outcome | None":
        """Return the outcome that :meth:`record` put on a trace; None if the episode was never verified."""
        found = trace.info.get(_INFO_KEY)
        return None if found is None else cls.model_validate(found)

    def record(self, trace: vf.Trace) -> None:
        """Put the outcome on the trace, and set verifiers' stop condition unless there is one already."""
        trace.info[_INFO_KEY] = self.model_dump(mode="json")
        if trace.stop_condition is not None or self.end_reason in _ORDINARY_ENDS:
            return
        if self.end_reason is EndReason.TIME_LIMIT:
            trace.record_timeout("agent")
        else:
            trace.stop(_STOP_WORDS.get(self.end_reason, self.end_reason.value))


def budget_of(stop_condition: str) -> EndReason:
    """Return the end reason for verifiers' stop condition; a task's own condition counts as ``MAX_TURNS``."""
    return _BUDGETS.get(stop_condition, EndReason.MAX_TURNS)


def as_rollout_error(error: HarborGymError) -> RolloutError:
    """Return the error for verifiers, whose message begins with the ``failure_kind``.

    A rule of ``retries`` can match the type (``SandboxError``) or the kind (``message = "^sandbox_lost"``).
    """
    ours = classify(error).failure_kind
    kind = next((theirs for kind, theirs in _ERRORS if isinstance(error, kind)), HarnessError)
    return kind(f"{ours}: {type(error).__name__}: {error}")


def _reward_name(rewards: Mapping[str, float], config: EpisodeConfig) -> str:
    if config.reward_key is not None or config.reward_function is not None or len(rewards) != 1:
        return config.reward_key or DEFAULT_REWARD
    (only,) = rewards
    return only
