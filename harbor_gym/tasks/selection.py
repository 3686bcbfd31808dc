"""Select tasks by conditions on their task.toml, and split them for training and testing."""

import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from harbor_gym._runtime.files import why_unreadable
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.tasks.resolve import SourcedTask

_CONDITION = re.compile(r"(?P<key>[\w.-]+)(?P<operator>!?=)(?P<values>.+)")


def filter_tasks(tasks: Sequence[SourcedTask], conditions: Sequence[str]) -> list[SourcedTask]:
    """Return the tasks whose task.toml meets every condition, in their order.

    A condition is ``key=value``, ``key=one,another`` (either value matches) or ``key!=value``. The key is looked up in
    ``[metadata]``, then in ``[task]``; a key with dots is a path in the file, as in ``agent.user=root``. A list, such
    as ``keywords``, equals each of its elements; a missing key equals nothing.

    Raises:
        UsageError: A condition can't be read, or no task is left.
        TaskError: A task.toml can't be read.
    """
    parsed = [Condition.parse(condition) for condition in conditions]
    kept = [task for task in tasks if all(condition.holds(_look_up(task, condition.key)) for condition in parsed)]
    if tasks and not kept:
        raise UsageError(f"no task of {len(tasks)} matches {' and '.join(conditions)}")
    return kept


def split_tasks(
    tasks: Sequence[SourcedTask], *, test_fraction: float = 0.0, test_tasks: Sequence[str] = (), seed: int = 0
) -> tuple[list[SourcedTask], list[SourcedTask]]:
    """Split the tasks into those to train on and those to test on.

    A fraction is drawn by name and seed: the tasks' order does not matter, and an added task moves few of the others.

    Args:
        tasks: All of them.
        test_fraction: Share to test on, rounded to whole tasks: at least one, and not all.
        test_tasks: The names of those to test on instead.
        seed: Draws the fraction.

    Raises:
        UsageError: Both are given, a name is unknown, or nothing would be left to train on.
    """
    if test_tasks and test_fraction:
        raise UsageError("give the tasks to test on either by name or as a fraction")
    if not 0 <= test_fraction < 1:
        raise UsageError(f"the fraction of tasks to test on must be at least 0 and below 1, got {test_fraction}")
    names = {task.name for task in tasks}
    if unknown := sorted(set(test_tasks) - names):
        raise UsageError(f"no task to test on is called {', '.join(unknown)}; there are {', '.join(sorted(names))}")
    chosen = set(test_tasks)
    if test_fraction:
        if len(tasks) < 2:
            raise UsageError("one task can't be split into training and testing")
        count = min(max(round(test_fraction * len(tasks)), 1), len(tasks) - 1)
        chosen = set(sorted(names, key=lambda name: _lot(seed, name))[:count])
    train = [task for task in tasks if task.name not in chosen]
    if not train:
        raise UsageError("every task is a test task: none is left for training")
    return train, [task for task in tasks if task.name in chosen]


def _lot(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a value that has a name."""

    key: str
    """The value's name."""

    expected: bool
    """Whether the value has to be one of ``values``, or none of them."""

    values: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``key=value``, ``key=one,another`` or ``key!=value``.

        Raises:
            UsageError: It is none of these.
        """
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is no condition; write key=value, key=one,another or key!=value")
        values = frozenset(value.strip() for value in match["values"].split(","))
        return cls(match["key"], match["operator"] == "=", values)

    def holds(self, found: Any) -> bool:
        """Return whether a value meets the condition: a list equals each of its elements, None equals nothing."""
        elements: list[Any] = found if isinstance(found, list) else [found]
        return any(_text(element) in self.values for element in elements if element is not None) is self.expected


def _look_up(task: SourcedTask, key: str) -> Any:
    path = task.path / "task.toml"
    try:
        config: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise TaskError(f"{path} can't be read: {why_unreadable(exc)}: repair the file") from exc
    if "." not in key:
        return next((config[table][key] for table in ("metadata", "task") if key in config.get(table, {})), None)
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _text(element: Any) -> str:
    if isinstance(element, bool):
        return str(element).lower()
    return f"{element:g}" if isinstance(element, float) else str(element)
