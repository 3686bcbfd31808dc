"""The episodes that are under way in this process, for a display of what each does now."""

import threading
import time
from contextvars import ContextVar
from typing import NamedTuple
from weakref import WeakKeyDictionary

LABEL: ContextVar[str | None] = ContextVar("harbor_gym_episode", default=None)
"""The name that the caller of an episode gives it, such as ``episode 2 of devops_task``; None has none."""


class UnderWay(NamedTuple):
    """An episode that is under way."""

    name: str
    doing: str
    """What it does now, such as ``turn 4, waiting for the model``."""

    since: float
    """When it began to do so, by the monotonic clock."""

    def __str__(self) -> str:
        return f"{self.name}: {self.doing} for {time.monotonic() - self.since:.0f} s"


_episodes: WeakKeyDictionary[object, UnderWay] = WeakKeyDictionary()
_lock = threading.Lock()


def note(owner: object, name: str, doing: str | None) -> None:
    """Note what an episode does from now on; None ends it.

    Args:
        owner: The object that plays it; an episode whose owner is gone is forgotten.
        name: Its name if its caller gave it none (:data:`LABEL`).
        doing: What it does.
    """
    with _lock:
        if doing is None:
            _episodes.pop(owner, None)
        else:
            _episodes[owner] = UnderWay(LABEL.get() or name, doing, time.monotonic())


def under_way() -> list[UnderWay]:
    """Return the episodes under way, the one that has done the same for the longest time first."""
    with _lock:
        return sorted(_episodes.values(), key=lambda episode: episode.since)
