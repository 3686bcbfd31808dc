"""The setting ``--branch``: the turn at which episodes of a group are copied."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, Self

from harbor_gym.errors import UsageError

_TEXT = re.compile(r"(?P<size>\d+)@(?P<at>mid|entropy|\d+)")


@dataclass(frozen=True)
class Branch:
    """Families of episodes that share their first turns."""

    size: int
    """Episodes in a family: a first one that is played from the start, and its copies."""

    at: Literal["mid", "entropy"] | int
    """The turn at which the copies begin: after half of the turns (``mid``), before the message of which the policy was
    least certain (``entropy``), or after this number of turns."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``4@mid``, ``4@entropy`` or ``4@3``.

        Raises:
            UsageError: ``text`` has another form.
        """
        found = _TEXT.fullmatch(text)
        if found is None or int(found["size"]) < 2:
            raise UsageError(f"branch is SIZE@mid, SIZE@entropy or SIZE@TURN with a SIZE of at least 2, got {text!r}")
        at = found["at"]
        return cls(int(found["size"]), int(at) if at.isdigit() else "mid" if at == "mid" else "entropy")

    def require_fit(self, group_size: int) -> None:
        """Check that a group consists of whole families.

        Raises:
            UsageError: ``group_size`` is not a multiple of the families' size.
        """
        if group_size % self.size:
            raise UsageError(f"a group of {group_size} can't be divided in families of {self.size}")

    def turn(self, logprobs: Sequence[Sequence[float]]) -> int:
        """Return how many turns an episode shares with its copies, at most all but the last one.

        Args:
            logprobs: For each of the episode's messages, the log-probability of each sampled token, in nats.
        """
        last = len(logprobs) - 1
        if self.at == "mid":
            return min(len(logprobs) // 2, last)
        if self.at == "entropy":
            return max(range(len(logprobs)), key=lambda turn: -fmean(logprobs[turn] or [0.0]))
        return min(self.at, last)

    def may_begin(self, turn: int, *, taken: int) -> bool:
        """Return whether copies may begin after ``turn`` turns of an episode that has ``taken`` turns and goes on."""
        if self.at == "mid":
            return turn >= (taken + 1) // 2
        return self.at == "entropy" or turn == min(self.at, taken)


def family_advantages(rewards: Sequence[float], families: Sequence[int]) -> list[tuple[float, float]]:
    """Return two advantages for each episode of a group: for the turns that its family shares, and for its own turns.

    The shared turns' advantage is the family's mean reward minus the mean of all families. The own turns' advantage is
    the episode's reward minus its family's mean; without copies in the family, it is the shared turns' advantage.

    Args:
        rewards: The reward of each episode.
        families: The family of each episode.
    """
    members = {family: [r for r, f in zip(rewards, families, strict=True) if f == family] for family in families}
    means = {family: fmean(values) for family, values in members.items()}
    baseline = fmean(means.values()) if means else 0.0
    found: list[tuple[float, float]] = []
    for reward, family in zip(rewards, families, strict=True):
        shared = means[family] - baseline
        found.append((shared, reward - means[family] if len(members[family]) > 1 else shared))
    return found
