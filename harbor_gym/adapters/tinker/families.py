"""The families of a group while it is played: their first episodes, and the snapshots at which copies begin."""

import asyncio
from dataclasses import dataclass, replace

from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Trajectory

from harbor_gym.adapters.tinker.branch import Branch
from harbor_gym.adapters.tinker.branching import FamilyTrajectory
from harbor_gym.adapters.tinker.env import HarborTerminalTinkerEnv
from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder
from harbor_gym.config import Snapshot
from harbor_gym.types import ForkMode


@dataclass(frozen=True)
class Beginning:
    """The beginning of an episode's copies."""

    family: int
    """The episode's place in its group."""

    paid: float
    """The sum of the shared turns' rewards."""

    snapshot: Snapshot | None
    """The snapshot at which copies begin; None if they share no turn."""


class Families:
    """The families of one group, each a first episode and its copies. Without ``branch`` there are no families.

    Args:
        builder: The group's builder.

    Raises:
        UsageError: The group's size is not a multiple of the families'.
    """

    def __init__(self, builder: EnvGroupBuilder) -> None:
        self._builder = builder
        self._branch: Branch | None = None
        self._mode: ForkMode = "replay"
        if isinstance(builder, HarborSingleTaskEnvGroupBuilder) and builder.template.branch is not None:
            self._branch = Branch.parse(builder.template.branch)
            self._branch.require_fit(builder.template.group_size)
            self._mode = "auto" if builder.template.env.sandbox_options.get("forkable") else "replay"
        self._over: dict[int, asyncio.Event] = {}
        self._beginnings: dict[int, Beginning] = {}

    async def beginning(self, place: int) -> Beginning | None:
        """Wait for the first episode of a copy's family; return None for a first episode, or if it was lost."""
        if self._branch is None or self._is_first(place):
            return None
        family = place - place % self._branch.size
        await self._event(family).wait()
        return self._beginnings.get(family)

    async def open(self, place: int, env: Env, beginning: Beginning | None) -> Env:
        """Return the environment for a place: ``env`` itself, or a copy that replaces it."""
        if isinstance(env, HarborTerminalTinkerEnv) and self._is_first(place):
            env.branch, env.snapshot_mode = self._branch, self._mode
        if beginning is None or beginning.snapshot is None:
            return env
        assert isinstance(self._builder, HarborSingleTaskEnvGroupBuilder)
        return await self._builder.make_copy(env, beginning.snapshot)

    def ended(self, place: int, env: Env, trajectory: Trajectory, beginning: Beginning | None) -> Trajectory:
        """Return a place's episode as one of its family. A first episode determines where its copies begin."""
        if self._branch is None:
            return trajectory
        if beginning is not None:
            return FamilyTrajectory.of(trajectory, family=beginning.family, paid=beginning.paid)
        if not self._is_first(place):
            return FamilyTrajectory.of(trajectory, family=place)
        transitions = trajectory.transitions
        shared = self._branch.turn([transition.ac.maybe_logprobs or [] for transition in transitions])
        known = env.snapshots.get(shared) if isinstance(env, HarborTerminalTinkerEnv) else None
        # The task is the group's own: an empty digest spares each copy reading its files again.
        start = None if known is None else replace(known, task_digest="")
        paid = sum(transition.reward for transition in transitions[:shared])
        self._beginnings[place] = Beginning(place, paid, start)
        return FamilyTrajectory.of(trajectory, family=place, shared=shared)

    def close(self, place: int) -> None:
        """Let the copies of a first episode begin; if it was lost, they are played from the start."""
        self._event(place).set()

    def _is_first(self, place: int) -> bool:
        return self._branch is not None and place % self._branch.size == 0

    def _event(self, place: int) -> asyncio.Event:
        return self._over.setdefault(place, asyncio.Event())
