"""The report of an evaluation: an object for JSON, and a table for people."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from textwrap import wrap
from typing import Any

from harbor_gym._runtime.console.tables import markdown_table, plain_table
from harbor_gym.evaluation.episodes import EpisodeResult
from harbor_gym.evaluation.statistics import CONFIDENCE, Estimate, mean_estimate, pass_estimate
from harbor_gym.transcripts import episode_name

REPORT_FORMAT = 1
_NO_SETTINGS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class TaskReport:
    """The results of one task, or of all. Infrastructure errors are counted, but are in no mean and no denominator."""

    name: str
    """The task's name, or ``all``."""

    episodes: int
    """Graded episodes."""

    solved: int
    """Graded episodes whose reward reached the threshold."""

    infrastructure_errors: int
    """Episodes without a grade, after their retries."""

    pass_at: dict[int, Estimate | None]
    """k → pass@k; None if too few episodes were graded."""

    reward: Estimate | None
    """Mean reward; None if no episode was graded."""

    turns: float | None
    """Mean turns of a graded episode."""

    sampled_tokens: float | None
    """Mean tokens that the policy sampled in a graded episode."""

    prompt_tokens: float | None
    """Mean length of a graded episode's last prompt."""

    seconds: float | None
    """Mean seconds of a graded episode."""

    sampling_sec: float | None
    """Mean seconds of waiting for the sampler in a graded episode."""

    outcomes: dict[str, int]
    """End reason → number of episodes, including infrastructure errors."""


@dataclass(frozen=True)
class Report:
    """The results of an evaluation."""

    threshold: float
    """The reward at which an episode counts as solved."""

    overall: TaskReport
    """All tasks: means of the tasks' means, so that each task has the same weight; sums of counts."""

    tasks: tuple[TaskReport, ...]
    episodes: tuple[EpisodeResult, ...]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """The evaluation's settings for JSON: ``model``, ``weights``, ``temperature``, ``env``, ``versions`` and others."""

    provenance: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the episodes were made, for JSON: see :func:`harbor_gym.evaluation.provenance.provenance`."""

    def as_object(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {"format": REPORT_FORMAT, "confidence": CONFIDENCE, **asdict(self)}


def summarize(
    results: Sequence[EpisodeResult],
    *,
    threshold: float = 1.0,
    ks: Sequence[int] = (1,),
    settings: Mapping[str, Any] = _NO_SETTINGS,
    provenance: Mapping[str, Any] = _NO_SETTINGS,
) -> Report:
    """Make the report of an evaluation's episodes.

    Args:
        results: The results of :func:`harbor_gym.evaluation.evaluate`.
        threshold: The reward at which an episode counts as solved.
        ks: The values of k for which to estimate pass@k.
        settings: The evaluation's settings for JSON, without secrets.
        provenance: How the episodes were made, for JSON.
    """
    by_task: dict[str, list[EpisodeResult]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    groups = list(by_task.values())
    tasks = tuple(_summarize(group[0].task, [group], threshold, ks) for group in groups)
    return Report(
        threshold, _summarize("all", groups, threshold, ks), tasks, tuple(results), dict(settings), dict(provenance)
    )


def _summarize(name: str, groups: Sequence[Sequence[EpisodeResult]], threshold: float, ks: Sequence[int]) -> TaskReport:
    everything = [item for group in groups for item in group]
    rewards = [[item.reward for item in group if item.reward is not None] for group in groups]
    graded = [[item for item in group if item.reward is not None] for group in groups]
    counts = [(len(group), sum(reward >= threshold for reward in group)) for group in rewards]

    def mean(field: str) -> float | None:
        means = [fmean(float(getattr(item, field)) for item in group) for group in graded if group]
        return round(fmean(means), 3) if means else None

    return TaskReport(
        name=name,
        episodes=sum(episodes for episodes, _ in counts),
        solved=sum(solved for _, solved in counts),
        infrastructure_errors=sum(item.reward is None for item in everything),
        pass_at={k: pass_estimate(counts, k) for k in ks},
        reward=mean_estimate(rewards),
        turns=mean("turns"),
        sampled_tokens=mean("sampled_tokens"),
        prompt_tokens=mean("prompt_tokens"),
        seconds=mean("seconds"),
        sampling_sec=mean("sampling_sec"),
        outcomes={
            str(reason): count for reason, count in Counter(item.end_reason for item in everything).most_common()
        },
    )


def figures(report: Report) -> dict[str, float]:
    """Return the figures over all tasks by name, with ``reward/TASK`` of each of several; unknown ones are left out."""
    overall = report.overall
    estimates = {"reward": overall.reward, **{f"pass@{k}": estimate for k, estimate in overall.pass_at.items()}}
    if len(report.tasks) > 1:
        estimates |= {f"reward/{task.name}": task.reward for task in report.tasks}
    return {
        **{name: estimate.value for name, estimate in estimates.items() if estimate is not None},
        **{name: value for name, value in asdict(overall).items() if isinstance(value, int | float)},
        **{f"ended/{name}": count for name, count in overall.outcomes.items()},
    }


def format_report(report: Report, *, width: int | None = None) -> str:
    """Return a table with a row per task, and a row for all if there are several.

    Args:
        report: The evaluation.
        width: Columns of the terminal that it has to fit: the least important of its own are left out, and named below
            it. None is a Markdown table with all of them.
    """
    shown = [*report.tasks, *([report.overall] if len(report.tasks) > 1 else [])]
    ks = list(report.overall.pass_at)
    head = ["task", "solved", *(f"pass@{k}" for k in ks), "reward", "turns", "tokens", "seconds", "infra", "ended"]
    rows = [_row(item, ks) for item in shown]
    note = f"brackets: {CONFIDENCE:.0%} intervals; solved: reward >= {report.threshold:g}"
    if width is None:
        return f"{markdown_table(head, rows)}\n{note}"
    ended = "\n".join(wrap(f"ended: {_ended(report.overall)}", width))
    columns = [list(cells) for cells in zip(head, *rows, strict=True)][:-1]
    *own, infra = columns
    columns, omitted = own if set(infra[1:]) == {"0"} else columns, list[str]()
    names = columns[0]
    names[:] = [_shortened(name, width // 3) for name in names]
    for least in ("tokens", "seconds", "turns", *(f"pass@{k}" for k in reversed(ks[1:])), "infra", "reward"):
        if sum(max(map(len, column)) + 2 for column in columns) - 2 <= width:
            break
        omitted += [column[0] for column in columns if column[0] == least]
        columns = [column for column in columns if column[0] != least]
    titles, *cells = zip(*columns, strict=True)
    rest = "\n" + "\n".join(wrap(f"not shown, but in the JSON: {', '.join(omitted)}", width)) if omitted else ""
    return f"{plain_table(titles, cells)}\n{ended}\n{note}{rest}"


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _row(item: TaskReport, ks: Sequence[int]) -> list[str]:
    return [
        item.name,
        f"{item.solved}/{item.episodes}",
        *(_estimate(item.pass_at[k]) for k in ks),
        _estimate(item.reward),
        *("-" if value is None else f"{value:.1f}" for value in (item.turns, item.sampled_tokens, item.seconds)),
        str(item.infrastructure_errors),
        _ended(item),
    ]


def _ended(item: TaskReport) -> str:
    return ", ".join(f"{name} {count}" for name, count in item.outcomes.items())


def _estimate(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def describe_episode(result: EpisodeResult) -> str:
    """Return one line about an episode that has ended."""
    lost = f"lost: {_one_line(result.error)}" if result.error else None
    outcome = lost or f"{result.end_reason}, reward {result.reward:g}"
    name = episode_name({"task": result.task, "episode": result.episode})
    unread = f" ({result.unread_calls} with a tool call that can't be read)" if result.unread_calls else ""
    resumed = f", resumed ({result.resumed})" if result.resumed else ""
    return f"{name}: {outcome}, {result.turns} turns{unread}, {result.seconds:.1f} s{resumed}"


def describe_losses(report: Report) -> str | None:
    """Return in one line why an evaluation has no result; None if an episode was graded."""
    if report.overall.episodes:
        return None
    errors = Counter(_one_line(result.error or result.end_reason) for result in report.episodes)
    (error, count), *others = errors.most_common()
    share = f", {count} of them" if others else ""
    return f"no result: all of {len(report.episodes)} episodes were lost{share}: {error}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Progress:
    """Counts the results of an evaluation for its progress lines.

    Args:
        total: Episodes of the whole evaluation.
        threshold: The reward at which an episode counts as solved.
        played: Results of an interrupted evaluation that continues.
    """

    def __init__(self, total: int, threshold: float, played: Sequence[EpisodeResult] = ()) -> None:
        self._total, self._threshold = total, threshold
        self._rewards = [result.reward for result in played]

    def line(self, result: EpisodeResult) -> str:
        """Return one line about an episode that has ended, with the counts so far."""
        self._rewards.append(result.reward)
        graded = [reward for reward in self._rewards if reward is not None]
        solved = sum(reward >= self._threshold for reward in graded)
        counts = f"[{len(self._rewards)}/{self._total}, solved {solved}/{len(graded)}]"
        return f"{counts} {describe_episode(result)}"
