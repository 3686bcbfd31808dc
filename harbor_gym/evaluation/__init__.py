"""How good a policy is on a set of tasks: pass@k and mean reward with intervals. No framework is involved."""

from harbor_gym.evaluation.episodes import EpisodeResult, Player, evaluate
from harbor_gym.evaluation.report import Report, TaskReport, format_report, summarize
from harbor_gym.evaluation.statistics import Estimate, bootstrap, pass_at_k, wilson

__all__ = [
    "EpisodeResult",
    "Estimate",
    "Player",
    "Report",
    "TaskReport",
    "bootstrap",
    "evaluate",
    "format_report",
    "pass_at_k",
    "summarize",
    "wilson",
]
