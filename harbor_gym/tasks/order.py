"""The order of tasks: shuffled epochs with weights, reproducible from any index."""

import bisect
import math
import random
from collections.abc import Sequence
from fractions import Fraction

from harbor_gym.errors import UsageError


class TaskOrder:
    """An endless sequence of tasks, in epochs. The task at an index depends only on the arguments.

    In an epoch each task comes as often as its weight: at weight 1 once, at 2 twice, at 0.5 in every other epoch.

    Args:
        weights: One per task, above 0.
        seed: Shuffles each epoch, and spreads the tasks whose weight is no whole number over the epochs.
        shuffle: False keeps the order of ``weights`` in each epoch.

    Raises:
        UsageError: There is no task, or a weight is no number above 0.
    """

    def __init__(self, weights: Sequence[float], *, seed: int = 0, shuffle: bool = True) -> None:
        if not weights:
            raise UsageError("there are no tasks to put in order")
        if wrong := [weight for weight in weights if not (math.isfinite(weight) and weight > 0)]:
            raise UsageError(f"a task's weight must be a number above 0, got {wrong[0]}; leave the task out instead")
        # Decimals as they are written: 0.1 ten times is a whole epoch.
        self._weights = [Fraction(str(weight)) for weight in weights]
        lots = random.Random(f"weights/{seed}")
        self._phases = [Fraction(lots.randrange(1000), 1000) for _ in weights]
        self._seed = seed
        self._shuffle = shuffle
        self._last: tuple[int, list[int]] = (-1, [])

    def __getitem__(self, place: int) -> int:
        """Return the index in ``weights`` of the task at ``place``, from 0."""
        epochs = range(int((place + len(self._weights) + 1) / sum(self._weights)) + 2)
        epoch = bisect.bisect_right(epochs, place, key=self.places_before) - 1
        return self._epoch(epoch)[place - self.places_before(epoch)]

    def places_before(self, epoch: int) -> int:
        """Return how many places the epochs before ``epoch`` have together."""
        return sum(self._count_before(task, epoch) for task in range(len(self._weights)))

    def _count_before(self, task: int, epoch: int) -> int:
        return math.floor(epoch * self._weights[task] + self._phases[task])

    def _epoch(self, epoch: int) -> list[int]:
        if self._last[0] != epoch:
            tasks = [
                task
                for task in range(len(self._weights))
                for _ in range(self._count_before(task, epoch + 1) - self._count_before(task, epoch))
            ]
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(tasks)
            self._last = (epoch, tasks)
        return self._last[1]
