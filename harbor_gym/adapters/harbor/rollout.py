"""What the interface returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harbor_gym.errors import HarborGymError
from harbor_gym.types import EndReason, TokenSequence, Turn


class Strategy(StrEnum):
    """Which loop plays a rollout, and where its tokens are recorded."""

    ENV = "env"
    """Our own loop, :func:`harbor_gym.run_episode`. No agent of Harbor's takes part."""

    GATEWAY = "gateway"
    """A Harbor trial whose agent speaks to a session of :mod:`harbor_gym.gateway`, which records the tokens."""

    DETAILS = "details"
    """A Harbor trial whose agent reports ``rollout_details``, as Terminus-2 does. A message that was cut at the
    sampler's token limit is missing there."""


@dataclass(frozen=True)
class TokenRollout:
    """One finished rollout. ``token_ids``, ``mask`` and ``logprobs`` have one length."""

    task_name: str
    """Name of the task's directory."""

    trial_name: str
    """Name of the trial; unlike that of any other rollout."""

    reward: float | None
    """The verifier's reward; None where there is no verdict. Leave such a rollout out of training: it is no 0."""

    end_reason: EndReason
    """Why it ended."""

    error: HarborGymError | None = None
    """Why there is no reward."""

    segments: Sequence[TokenSequence] = ()
    """Every training sequence of the policy. One, unless a prompt did not extend the last one token by token."""

    turns: Sequence[Turn] = ()
    """The policy's own conversation as text, the reward with the last turn."""

    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers for aggregation."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Every key that the verifier wrote; of a multi-step task what Harbor makes of its steps. Empty without a
    verdict."""

    step_rewards: Sequence[Mapping[str, float]] = ()
    """Of a multi-step task, what the verifier wrote of each step."""
    missing_protections: Sequence[str] = ()
    """What the sandbox could not give to the grading, one sentence each; empty is as it should be."""

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the segment with the most sampled tokens; empty where nothing was sampled."""
        return [] if (main := self._main) is None else [*main.prompt, *main.completion]

    @property
    def mask(self) -> list[int]:
        """1 for each of ``token_ids`` that the policy sampled, 0 for one that it was shown."""
        return [] if (main := self._main) is None else [0] * len(main.prompt) + main.mask

    @property
    def logprobs(self) -> list[float]:
        """Log-probability of each sampled token, in nats; 0.0 where the mask is 0, NaN where none was returned."""
        return [] if (main := self._main) is None else [0.0] * len(main.prompt) + main.logprobs

    @property
    def _main(self) -> TokenSequence | None:
        return max(self.segments, key=lambda segment: sum(segment.mask), default=None)
