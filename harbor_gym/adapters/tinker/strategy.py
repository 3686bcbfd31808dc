"""The rollout strategy: an episode that the infrastructure lost is retried, and then left out of its group."""

import dataclasses
import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, override

import tinker
from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_strategy import RolloutResult, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RolloutError, Trajectory

from harbor_gym.adapters.tinker.clocked import clocked_rollout
from harbor_gym.adapters.tinker.env import EpisodeEnv
from harbor_gym.adapters.tinker.families import Beginning, Families
from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder
from harbor_gym.adapters.tinker.seeding import seeded
from harbor_gym.config import DEFAULT_MAX_RETRIES
from harbor_gym.errors import ForkDivergedError, HarborGymError, UsageError
from harbor_gym.outcomes import RetryBudget, classify, describe, error_name
from harbor_gym.stragglers import BatchDeadlineError, ClosedGroup, EpisodeClock, Stragglers, play_group

logger = logging.getLogger(__name__)

_PASSING = (tinker.APIConnectionError, tinker.RateLimitError, tinker.InternalServerError, TimeoutError, ConnectionError)


@dataclass(frozen=True)
class RetryThenMask(RolloutStrategy):
    """Retries each lost episode, then leaves it out: the other episodes are the group.

    Unlike the cookbook's strategies it tolerates only infrastructure failures. Any other error is a bug, or a task that
    can't be used, and ends the run instead of being skipped in every batch. So do too many groups in a row that lose
    all their episodes. ``rollout_errors/<class>`` in the metrics counts the losses; those of a skipped group are
    reported with the next one, in the same process.

    All pickled copies of a strategy in a process are one object. If other processes play the rollouts, each counts its
    own lost groups in a row.
    """

    max_retries: int = DEFAULT_MAX_RETRIES
    """Retries of an episode, in a fresh sandbox, after failures of the infrastructure; 0 leaves it out at once."""

    max_lost_groups: int = 16
    """The run ends after this number of groups in a row that lose all their episodes."""

    seed: int | None = None
    """Seeds the sampling of each message in labelled groups; None leaves it to the service. A retried episode has other
    seeds."""

    temperature: float | None = None
    """Sampling temperature that replaces the loop's; 0 is greedy."""

    stragglers: Stragglers = field(default_factory=Stragglers)
    """How to treat the slowest episodes of each group. The deadline counts from the group's start."""

    _unreported: list[RolloutError] = field(default_factory=list[RolloutError], init=False, repr=False, compare=False)
    _lost_groups: list[str] = field(default_factory=list[str], init=False, repr=False, compare=False)
    _faults: list[Exception] = field(default_factory=list[Exception], init=False, repr=False, compare=False)
    _key: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False)

    @property
    def fault(self) -> Exception | None:
        """The error that ends the run, if there is one. Loops should poll it: the streaming one would wait forever."""
        return self._faults[0] if self._faults else None

    def note_fault(self, error: Exception) -> None:
        """Record an error that ended a group in another process."""
        self._faults.append(error)

    @property
    @override
    def catches_group_errors(self) -> bool:
        # The cookbook reads this at the start, for its counters, and again after an error of a group.
        return not self._faults

    @override
    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        """Return the group's finished episodes, in order, and the errors of the others.

        Raises:
            AllTrajectoriesFailedError: No episode finished; the loop continues without the group.
            Exception: An error that is not the infrastructure's, or the last one of too many lost groups.
        """
        group = _Group(env_group_builder, self._with_temperature(policy), self.max_retries, self.seed, self.stragglers)
        try:
            closed = await group.run()
        except Exception as exc:  # the boundary to the loop: noted here, and raised
            self._faults.append(exc)
            raise
        self._unreported.extend(map(_as_record, group.errors))
        if not closed.ended:
            self._give_up(group.errors, len(closed.dropped))
        self._lost_groups.clear()
        errors = list(self._unreported)
        self._unreported.clear()
        ended = closed.ended.values()
        return RolloutResult([trajectory for trajectory, _ in ended], [env for _, env in ended], errors)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self.max_retries, self.max_lost_groups, self.seed, self.temperature, self.stragglers)
        return _arrive, (self._key, *settings)

    def _with_temperature(self, policy: TokenCompleter) -> TokenCompleter:
        if self.temperature is None or not isinstance(policy, TinkerTokenCompleter):
            return policy
        return dataclasses.replace(policy, temperature=self.temperature)

    def _give_up(self, errors: list[Exception], dropped: int) -> None:
        message = f"all episodes of a group were lost ({_summary(errors)})"
        if dropped:
            limit = self.stragglers.batch_deadline_sec
            message = f"no episode of a group had an answer within the batch's deadline of {limit:g} s"
            errors = [*errors, UsageError(f"{message}; raise --batch-deadline")]
        self._lost_groups.append(message)
        if len(self._lost_groups) >= self.max_lost_groups and errors:
            errors[-1].add_note(f"{len(self._lost_groups)} groups in a row lost all their episodes")
            self._faults.append(errors[-1])
            raise errors[-1]
        raise AllTrajectoriesFailedError(message)


_arrived: dict[str, RetryThenMask] = {}


def _arrive(key: str, *settings: Any) -> RetryThenMask:
    """Return this process's copy of a pickled strategy."""
    return _arrived.setdefault(key, RetryThenMask(*settings))


class _Group:
    """One group's rollouts."""

    def __init__(
        self, builder: EnvGroupBuilder, policy: TokenCompleter, retries: int, seed: int | None, stragglers: Stragglers
    ) -> None:
        self.errors: list[Exception] = []
        self._retried = 0
        self._builder = builder
        self._policy = policy
        self._retries = retries
        self._seed = seed
        self._families = Families(builder)
        self._stragglers = stragglers

    async def run(self) -> ClosedGroup[tuple[Trajectory, Env]]:
        envs = list(await self._builder.make_envs())
        size = len(envs)
        # The cookbook's builders make whole groups; unused environments cost nothing.
        while len(envs) < self._stragglers.started(size):
            envs += await self._builder.make_envs()
        closed = await play_group(size, self._stragglers, lambda place, clock: self._run_one(place, envs[place], clock))
        if isinstance(self._builder, HarborSingleTaskEnvGroupBuilder):
            self._builder.note({**closed.metrics, "infra/retried": self._retried})
        return closed

    async def _run_one(self, place: int, env: Env, clock: EpisodeClock) -> tuple[Trajectory, Env] | None:
        try:
            return await self._run_to_end(place, env, clock, await self._families.beginning(place))
        finally:
            self._families.close(place)

    async def _run_to_end(
        self, place: int, env: Env, clock: EpisodeClock, beginning: Beginning | None
    ) -> tuple[Trajectory, Env] | None:
        budget, attempt = RetryBudget(self._retries), 0
        while True:
            policy = self._policy_of(place, attempt)
            try:
                env = await self._families.open(place, env, beginning)
                # Any other environment can't be truncated, and is cancelled at the deadline.
                if self._stragglers.is_active and isinstance(env, EpisodeEnv):
                    trajectory = await clocked_rollout(policy, env, clock)
                else:
                    trajectory = await do_single_rollout(policy, env)
                return self._families.ended(place, env, trajectory, beginning), env
            except Exception as exc:  # the boundary to sandboxes and the sampling service
                if isinstance(exc, BatchDeadlineError) or not is_passing(exc):
                    raise
                self.errors.append(exc)
                name = str(getattr(env, "name", "an episode"))
                if beginning is not None and isinstance(exc, ForkDivergedError):
                    beginning = None  # another replay would diverge, too: play from the task's start
                elif not clock.restart() or not await budget.allows(exc, attempt, name):
                    return None
                self._retried += 1
                attempt += 1
                env = (await self._builder.make_envs())[0]

    def _policy_of(self, place: int, attempt: int) -> TokenCompleter:
        label = self._builder.label if isinstance(self._builder, HarborSingleTaskEnvGroupBuilder) else ""
        if self._seed is None or not label or not isinstance(self._policy, TinkerTokenCompleter):
            return self._policy
        return seeded(self._policy, self._seed, label, place, attempt)


def is_passing(error: Exception) -> bool:
    """Return whether an episode failed for a reason that is not the policy's, so that a retry may succeed."""
    if isinstance(error, HarborGymError):
        return classify(error).is_retryable
    if isinstance(error, tinker.RequestFailedError):
        return error.category is not tinker.types.RequestErrorCategory.User
    return isinstance(error, _PASSING)


def _as_record(error: Exception) -> RolloutError:
    return RolloutError(error_type=error_name(error), error_message=str(error))


def _summary(errors: Iterable[Exception]) -> str:
    return "; ".join(map(describe, errors))
