"""The processors of this machine that each sandbox uses: as many as its task has, the least used first."""

from __future__ import annotations

import math
import os
import random
import threading
from collections import Counter
from collections.abc import Iterable

_lock = threading.Lock()
_uses: Counter[int] = Counter()
"""Processor → sandboxes of this process that have it."""


def take(cpus: float | None) -> tuple[int, ...]:
    """Return the processors of a new sandbox, for :func:`give_back` at its end.

    Those that the fewest sandboxes of this process have come first. Among equals chance decides, so that the sandboxes
    of several processes spread as well.

    Args:
        cpus: Its share of the machine. A fraction is rounded up: its quota of processor time holds the rest.

    Returns:
        Their numbers, ascending; empty if it may use all that this process may use.
    """
    usable = os.sched_getaffinity(0)
    if cpus is None or cpus > len(usable) - 1:
        return ()
    with _lock:
        chosen = sorted(usable, key=lambda number: (_uses[number], random.random()))[: math.ceil(cpus)]
        _uses.update(chosen)
    return tuple(sorted(chosen))


def give_back(processors: Iterable[int]) -> None:
    """Note that a sandbox with these processors has ended."""
    with _lock:
        _uses.subtract(processors)
