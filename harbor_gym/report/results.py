"""The results of a run's tasks, and its failures by reason, from the summaries of its episodes."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from urllib.parse import quote

from harbor_gym.types import EndReason

_MOST_FAILURES = 30
"""Most rows of failures on a page."""

_SHOWN = 6
"""Episodes of a failure that are linked; the number of the others follows."""

_SECONDS = re.compile(r"\b\d+(\.\d+)? ?m?s\b")
"""A duration in a verifier's line; two lines that differ in it alone are the same failure."""


@dataclass(frozen=True, slots=True)
class Link:
    """An episode on the page."""

    title: str
    address: str
    """The page's fragment that opens it; empty if its transcript is not on the page."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The results of one task. Episodes without a grade are counted as lost, and are in no mean."""

    graded: int
    solved: int
    lost: int
    reward: float | None
    """Mean reward; None if no episode was graded."""

    low: float | None
    """The interval of ``reward``; None where none is known."""

    high: float | None
    turns: float | None
    """Mean turns of a graded episode; likewise ``tokens`` and ``seconds``."""

    tokens: float | None
    seconds: float | None
    address: str
    """The page's fragment that opens its first episode that is not solved, or else its first one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Episodes that failed alike."""

    kind: str
    """``lost`` or ``not solved``."""

    reason: str
    """The end reason; of lost ones the error."""

    line: str
    """The last line that the verifier printed."""

    count: int
    episodes: Sequence[Link]
    """The first of them."""


def task_rows(
    evaluation: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]], *, place: int
) -> dict[str, TaskRow]:
    """Return task → its results, in the order in which the tasks were played.

    Args:
        evaluation: What :func:`harbor_gym.report.evaluation.read_evaluation` returned; empty for a training run.
        summaries: Summaries of the run's episodes.
        place: The run's number among the page's runs, from 0.
    """
    threshold, intervals = _threshold(evaluation), {task["name"]: task for task in evaluation.get("tasks") or []}
    tasks: dict[str, list[Mapping[str, Any]]] = {name: [] for name in intervals}
    for episode in _episodes(evaluation, summaries):
        tasks.setdefault(str(episode.get("task") or "-"), []).append(episode)

    def row(name: str, episodes: Sequence[Mapping[str, Any]]) -> TaskRow:
        graded = [episode for episode in episodes if episode.get("reward") is not None]
        failed = [episode for episode in episodes if not (episode.get("reward") or 0.0) >= threshold]
        shown = next((episode["name"] for episode in (*failed, *episodes) if episode.get("name")), None)
        interval = (intervals.get(name) or {}).get("reward") or {}

        def mean(key: str) -> float | None:
            values = [float(episode[key]) for episode in graded if episode.get(key) is not None]
            return fmean(values) if values else None

        return TaskRow(
            len(graded),
            sum(episode["reward"] >= threshold for episode in graded),
            len(episodes) - len(graded),
            mean("reward"),
            interval.get("low"),
            interval.get("high"),
            mean("turns"),
            mean("tokens"),
            mean("seconds"),
            _address(shown, place),
        )

    return {name: row(name, episodes) for name, episodes in tasks.items()}


def failures(evaluation: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]], *, place: int) -> list[Failure]:
    """Return the failures by reason and by the last line of the verifier, the most common first.

    Args:
        evaluation: See :func:`task_rows`.
        summaries: Likewise.
        place: Likewise.
    """
    threshold, titled = _threshold(evaluation), _title_in_evaluation if evaluation else _title
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for episode in _episodes(evaluation, summaries):
        reward, reason = episode.get("reward"), str(episode.get("end_reason"))
        if reward is None:
            key = ("lost", " ".join(str(episode.get("error") or reason).split()), "")
        elif reward < threshold:
            key = ("not solved", reason, _SECONDS.sub("… s", str(episode.get("verdict") or "")))
        else:
            continue
        groups.setdefault(key, []).append(episode)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_FAILURES]
    return [
        Failure(*key, len(found), [Link(titled(item), _address(item.get("name"), place)) for item in found[:_SHOWN]])
        for key, found in ordered
    ]


def dropped(summaries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the number of dropped episodes and their tasks; None if there are none."""
    gone = Counter(str(episode["task"]) for episode in summaries if episode["end_reason"] == EndReason.DROPPED)
    played = Counter(str(episode["task"]) for episode in summaries)
    tasks = ", ".join(f"{task} {count} of {played[task]}" for task, count in gone.most_common())
    return f"{gone.total()} of {len(summaries)}: {tasks}" if gone else None


def _episodes(evaluation: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the summaries, or of a finished evaluation all of its results, with what their summaries have beyond."""
    if not (results := evaluation.get("episodes")):
        return [episode for episode in summaries if episode.get("end_reason") != EndReason.DROPPED]
    known = {(episode.get("task"), episode.get("episode")): episode for episode in summaries}
    none: Mapping[str, Any] = {}
    return [
        {**known.get((result["task"], result["episode"]), none), "tokens": result.get("sampled_tokens"), **result}
        for result in results
    ]


def _threshold(evaluation: Mapping[str, Any]) -> float:
    return float(evaluation.get("threshold", 1.0))


def _title(episode: Mapping[str, Any]) -> str:
    return str(episode["title"])


def _title_in_evaluation(episode: Mapping[str, Any]) -> str:
    return f"episode {episode['episode']} of {episode['task']}"


def _address(name: object, place: int) -> str:
    """Return the page's fragment of an episode: the runs' episodes with ``|`` between, as the script reads it."""
    return f"#{quote('|' * place + str(name), safe='', errors='surrogatepass')}" if name else ""
