"""The result of an evaluation: one object for JSON, one table for people."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from harbor_gym._runtime.console.tables import markdown_table
from harbor_gym.evaluation.episodes import EpisodeResult
from harbor_gym.evaluation.statistics import CONFIDENCE, Estimate, mean_estimate, pass_estimate
from harbor_gym.transcripts import episode_name

REPORT_FORMAT = 1
_NO_SETTINGS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class TaskReport:
    """One task, or all of them. Infrastructure errors are counted and are in no mean and no denominator."""

    name: str
    """The task's name."""

    episodes: int
    """Episodes that were graded."""

    solved: int
    """Those whose reward reached the threshold."""

    infrastructure_errors: int
    """Episodes without a grade, after their retries."""

    pass_at: dict[int, Estimate | None]
    """k → pass@k; None where too few episodes were graded."""

    reward: Estimate | None
    """Mean reward; None where nothing was graded."""

    turns: float | None
    """Mean turns of a graded episode."""

    sampled_tokens: float | None
    """Mean tokens that the policy sampled in a graded episode."""

    prompt_tokens: float | None
    """Mean length of a graded episode's last prompt."""

    seconds: float | None
    """Mean seconds of a graded episode."""

    sampling_sec: float | None
    """Mean seconds of a graded episode in which it waited for the sampler."""

    outcomes: dict[str, int]
    """Why episodes ended → how many; infrastructure errors among them."""


@dataclass(frozen=True)
class Report:
    """An evaluation."""

    threshold: float
    """The reward at which a task counts as solved."""

    overall: TaskReport
    """All tasks: means over tasks, so that each counts the same; sums of counts."""

    tasks: tuple[TaskReport, ...]
    """Each task."""

    episodes: tuple[EpisodeResult, ...]
    """Each episode."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was evaluated and how, as JSON takes it: ``model``, ``weights``, ``temperature``, ``env`` and others."""

    def as_object(self) -> dict[str, Any]:
        """Return what JSON takes."""
        return {"format": REPORT_FORMAT, "confidence": CONFIDENCE, **asdict(self)}


def summarize(
    results: Sequence[EpisodeResult],
    *,
    threshold: float = 1.0,
    ks: Sequence[int] = (1,),
    settings: Mapping[str, Any] = _NO_SETTINGS,
) -> Report:
    """Make the report of an evaluation's episodes.

    Args:
        results: As :func:`harbor_gym.evaluation.evaluate` returned them.
        threshold: The reward at which a task counts as solved.
        ks: Numbers of attempts to estimate pass@k for.
        settings: What was evaluated and how, as JSON takes it, without secrets.
    """
    by_task: dict[str, list[EpisodeResult]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    groups = list(by_task.values())
    tasks = tuple(_summarize(group[0].task, [group], threshold, ks) for group in groups)
    return Report(threshold, _summarize("all", groups, threshold, ks), tasks, tuple(results), dict(settings))


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


def format_report(report: Report) -> str:
    """Return a Markdown table with a row per task, and one of all where there are several."""
    shown = [*report.tasks, *([report.overall] if len(report.tasks) > 1 else [])]
    ks = list(report.overall.pass_at)
    head = ["task", "solved", *(f"pass@{k}" for k in ks), "reward", "turns", "tokens", "seconds", "infra", "ended"]
    table = markdown_table(head, [_row(item, ks) for item in shown])
    return f"{table}\nbrackets: {CONFIDENCE:.0%} intervals; solved: reward >= {report.threshold:g}"


def _row(item: TaskReport, ks: Sequence[int]) -> list[str]:
    ended = ", ".join(f"{name} {count}" for name, count in item.outcomes.items())
    return [
        item.name,
        f"{item.solved}/{item.episodes}",
        *(_estimate(item.pass_at[k]) for k in ks),
        _estimate(item.reward),
        *("-" if value is None else f"{value:.1f}" for value in (item.turns, item.sampled_tokens, item.seconds)),
        str(item.infrastructure_errors),
        ended,
    ]


def _estimate(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def describe_episode(result: EpisodeResult) -> str:
    """Return one line about an episode that has ended."""
    lost = f"lost: {_one_line(result.error)}" if result.error else None
    outcome = lost or f"{result.end_reason}, reward {result.reward:g}"
    name = episode_name({"task": result.task, "episode": result.episode})
    unread = f" ({result.unread_calls} with a tool call that can't be read)" if result.unread_calls else ""
    return f"{name}: {outcome}, {result.turns} turns{unread}, {result.seconds:.1f} s"


def describe_losses(report: Report) -> str | None:
    """Return in one line why an evaluation has no result; None where an episode was graded."""
    if report.overall.episodes:
        return None
    errors = Counter(_one_line(result.error or result.end_reason) for result in report.episodes)
    (error, count), *others = errors.most_common()
    share = f", {count} of them" if others else ""
    return f"no result: all of {len(report.episodes)} episodes were lost{share}: {error}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Progress:
    """The progress of an evaluation, and its results so far.

    Args:
        total: Episodes of the whole evaluation.
        threshold: The reward at which a task counts as solved.
        played: Episodes that were played before.
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
