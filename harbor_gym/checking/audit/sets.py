"""Compare the tasks of a set: names that collide, duplicates, near-duplicates. Linear in the number of tasks."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harbor_gym.checking.audit.contents import TaskContents
from harbor_gym.checking.audit.kinds import at, finding
from harbor_gym.tasks.receipts import Finding

_SHINGLE = 3
"""Words of a shingle."""

_SKETCH = 64
"""Shingles of a text that are kept, those with the least hashes: what two texts share of them is what they share."""

_BANDS = 12
"""Shingles of a sketch by which tasks meet; two near-duplicates have almost all of these in common."""

_CROWD = 40
"""Tasks with one shingle, beyond which it is boilerplate and no reason to compare them."""

_NEAR = 0.9
_NEAR_BESIDE_EQUAL = 0.8
"""Share of common shingles that makes two texts almost equal; less is enough where the other texts are equal."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """What a task is compared with the others by."""

    name: str
    """Its name in ``task.toml``, or its directory's."""

    instruction: str
    tests: str
    """Digests of the words, without case, punctuation and comments."""

    instruction_sketch: frozenset[int]
    tests_sketch: frozenset[int]


def likeness(contents: TaskContents, directory: str) -> Likeness:
    """Return what to compare a task by.

    Args:
        contents: The task's texts.
        directory: The name of its directory.
    """
    config = next((file.text for file in contents.files if file.file == "task.toml"), "")
    named = re.search(r"^\[task\][^\[]*?^\s*name\s*=\s*[\"']([^\"']+)[\"']", config, re.M | re.S)
    instruction = _words(contents.instruction)
    tests = [
        word
        for file in sorted(contents.below("tests"), key=lambda file: file.file)
        for word in _words(re.sub(r"(?m)^\s*(?:#|//).*$", "", file.text))
    ]
    return Likeness(
        named[1] if named else directory, _digest(instruction), _digest(tests), _sketch(instruction), _sketch(tests)
    )


def compare(tasks: Mapping[str, Likeness]) -> dict[str, list[Finding]]:
    """Return the findings of each task among the others.

    Args:
        tasks: Task → what to compare it by.
    """
    found: dict[str, list[Finding]] = defaultdict(list)
    for others, name in _groups(tasks, lambda one: one.name.lower()):
        for task in others:
            rest = _others(others, task)
            found[task].append(finding("set/name-collision", f"{rest} has the name {name}, too", [at("task.toml")]))
    twins: set[str] = set()
    for others, _ in _groups(tasks, lambda one: f"{one.instruction} {one.tests}"):
        twins.update(others[1:])
        for task in others:
            rest = _others(others, task)
            message = f"{rest} has the same instruction and the same tests"
            found[task].append(finding("set/duplicate", message, [at("instruction.md")]))
    for one, other, share in _near({task: like for task, like in tasks.items() if task not in twins}):
        for task, second in ((one, other), (other, one)):
            message = f"{second} has {share:.0%} of its instruction and tests in common with it"
            found[task].append(finding("set/near-duplicate", message, [at("instruction.md")]))
    return found


def _groups(tasks: Mapping[str, Likeness], key: Callable[[Likeness], str]) -> Iterator[tuple[list[str], str]]:
    by_key: dict[str, list[str]] = defaultdict(list)
    for task, like in tasks.items():
        by_key[key(like)].append(task)
    return ((names, shared) for shared, names in by_key.items() if len(names) > 1)


def _near(tasks: Mapping[str, Likeness]) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of tasks that are almost equal, and what they share of the less alike of instruction and tests."""
    counts = Counter(mark for like in tasks.values() for mark in _marks(like))
    meeting: dict[tuple[str, int], list[str]] = defaultdict(list)
    compared: set[tuple[str, str]] = set()
    for task, like in tasks.items():
        for mark in _marks(like):
            if not 1 < counts[mark] <= _CROWD:
                continue
            for other in meeting[mark]:
                if (other, task) not in compared:
                    compared.add((other, task))
                    if (share := _shared(tasks[other], like)) is not None:
                        yield other, task, share
            meeting[mark].append(task)


def _marks(like: Likeness) -> list[tuple[str, int]]:
    """Return the hashes by which a task meets others: of its texts, and the least of both sketches."""
    instruction = [("i", mark) for mark in sorted(like.instruction_sketch)[:_BANDS]]
    return [*instruction, *(("t", mark) for mark in sorted(like.tests_sketch)[:_BANDS])]


def _shared(one: Likeness, other: Likeness) -> float | None:
    """Return how much two tasks share if they are near-duplicates."""
    shares = (
        _overlap(one.instruction_sketch, other.instruction_sketch),
        _overlap(one.tests_sketch, other.tests_sketch),
    )
    is_half_equal = one.instruction == other.instruction or one.tests == other.tests
    share = min(shares)
    return share if share >= (_NEAR_BESIDE_EQUAL if is_half_equal else _NEAR) else None


def _overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the share of common shingles (Jaccard), estimated from the least hashes of both.

    Source: A. Broder, On the resemblance and containment of documents, 1997.
    """
    least = sorted(one | other)[:_SKETCH]
    return sum(mark in one and mark in other for mark in least) / len(least) if least else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def _sketch(words: Sequence[str]) -> frozenset[int]:
    shingles = {" ".join(words[place : place + _SHINGLE]) for place in range(max(1, len(words) - _SHINGLE + 1))}
    return frozenset(sorted(zlib.crc32(shingle.encode()) for shingle in shingles)[:_SKETCH])


def _others(names: Sequence[str], task: str) -> str:
    """Return the first three names but the task's own, and how many more there are."""
    first = [name for name in names[:4] if name != task][:3]
    more = len(names) - 1 - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
