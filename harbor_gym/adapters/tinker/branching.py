"""Groups of families: episodes that share their first turns, and the advantages of their tokens."""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any, Self

import numpy as np
import tinker
from tinker_cookbook.rl.types import Metrics, Trajectory, TrajectoryGroup

from harbor_gym._runtime.imports import replaced_names
from harbor_gym.adapters.tinker.branch import family_advantages


@dataclass(frozen=True)
class FamilyTrajectory(Trajectory):
    """An episode of a family. A copy begins after the shared turns, which are part of its first prompt."""

    family: int = 0
    """The place of the family's first episode in the group."""

    shared: int = 0
    """For a first episode, the number of transitions that the copies share; for a copy 0."""

    paid: float = 0.0
    """For a copy, the sum of the shared turns' rewards."""

    @classmethod
    def of(cls, trajectory: Trajectory, *, family: int, shared: int = 0, paid: float = 0.0) -> Self:
        """Return a trajectory as one of a family."""
        known = (trajectory.transitions, trajectory.final_ob, trajectory.stop_reason)
        return cls(*known, family=family, shared=shared, paid=paid)


def branch_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return a group's ``branch/…``: copies, the turn at which they began, and the variance of rewards in a family.

    Turn and variance are means over the families with copies; without such a family they are missing.
    """
    members: dict[int, list[FamilyTrajectory]] = {}
    for trajectory in trajectories:
        if isinstance(trajectory, FamilyTrajectory):
            members.setdefault(trajectory.family, []).append(trajectory)
    if not members:
        return {}
    families = [family for family in members.values() if len(family) > 1]
    metrics: Metrics = {"branch/copies": sum(len(family) - 1 for family in families)}
    if families:
        metrics["branch/turn"] = fmean(max(item.shared for item in family) for family in families)
        metrics["branch/reward_variance"] = fmean(pvariance(map(_total, family)) for family in families)
    return metrics


def _total(trajectory: FamilyTrajectory) -> float:
    return trajectory.paid + sum(transition.reward for transition in trajectory.transitions)


@contextlib.contextmanager
def advantages_by_family() -> Generator[None]:
    """Make the cookbook's loop use :func:`.branch.family_advantages` for groups of families during the block."""
    from tinker_cookbook.rl import train

    loop: Any = train
    assemble = loop.assemble_training_data

    def assemble_families(
        groups: list[TrajectoryGroup], advantages: list[Any]
    ) -> tuple[list[tinker.Datum], list[dict[str, int]]]:
        both = [_advantages(group) for group in groups]
        own = [
            given if pairs is None else given.new_tensor([own for _, own in pairs])
            for given, pairs in zip(advantages, both, strict=True)
        ]
        data, places = assemble(groups, own)
        for datum, place in zip(data, places, strict=True):
            pairs = both[place["group_idx"]]
            trajectory = groups[place["group_idx"]].trajectories_G[place["traj_idx"]]
            if pairs is not None and isinstance(trajectory, FamilyTrajectory) and trajectory.shared:
                _pay_shared(datum, trajectory, pairs[place["traj_idx"]][0])
        return data, places

    with replaced_names(train, assemble_training_data=assemble_families):
        yield


def _advantages(group: TrajectoryGroup) -> list[tuple[float, float]] | None:
    families = [item.family for item in group.trajectories_G if isinstance(item, FamilyTrajectory)]
    return family_advantages(group.get_total_rewards(), families) if families else None


def _pay_shared(datum: tinker.Datum, trajectory: FamilyTrajectory, advantage: float) -> None:
    """Set the advantage of the shared turns' sampled tokens in the datum of a first episode."""
    inputs = datum.loss_fn_inputs
    before, mask = inputs["advantages"].to_numpy(), inputs["mask"].to_numpy() > 0
    mask[trajectory.transitions[trajectory.shared].ob.length - 1 :] = False  # targets are one token behind
    inputs["advantages"] = tinker.TensorData.from_numpy(np.where(mask, advantage, before).astype(before.dtype))
