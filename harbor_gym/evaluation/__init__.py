"""Evaluate a policy on a set of tasks, without any training framework: pass@k and mean reward with intervals."""

from harbor_gym.evaluation.best import Evaluated, note_evaluation, read_best, read_evaluations
from harbor_gym.evaluation.chat import ChatPlayer
from harbor_gym.evaluation.episodes import EpisodePlayer, EpisodeResult, Player, evaluate
from harbor_gym.evaluation.first import FirstAlone
from harbor_gym.evaluation.journal import Journal
from harbor_gym.evaluation.remote import OpenPlayer, RemotePlayer
from harbor_gym.evaluation.report import (
    Progress,
    Report,
    TaskReport,
    describe_episode,
    describe_losses,
    figures,
    format_report,
    summarize,
)
from harbor_gym.evaluation.statistics import Estimate, interval, pass_at_k, wilson
from harbor_gym.regrading import Regraded, format_regraded, regrade

__all__ = [
    "ChatPlayer",
    "EpisodePlayer",
    "EpisodeResult",
    "Estimate",
    "Evaluated",
    "FirstAlone",
    "Journal",
    "OpenPlayer",
    "Player",
    "Progress",
    "Regraded",
    "RemotePlayer",
    "Report",
    "TaskReport",
    "describe_episode",
    "describe_losses",
    "evaluate",
    "figures",
    "format_regraded",
    "format_report",
    "interval",
    "note_evaluation",
    "pass_at_k",
    "read_best",
    "read_evaluations",
    "regrade",
    "summarize",
    "wilson",
]
