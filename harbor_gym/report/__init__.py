"""Reports of training runs and evaluations: progress lines, curves, tables of a sweep, and pages of episodes."""

from harbor_gym.report.chats import messages
from harbor_gym.report.curves import draw_curve, draw_rates
from harbor_gym.report.export import Export, export
from harbor_gym.report.frame import episodes, turns, write_parquet
from harbor_gym.report.live import describe_batch, live_progress, quiet_console
from harbor_gym.report.metrics import Curves, find_runs, forget_batches, load_curves, read_metrics
from harbor_gym.report.page import write_page
from harbor_gym.report.table import format_summary

__all__ = [
    "Curves",
    "Export",
    "describe_batch",
    "draw_curve",
    "draw_rates",
    "episodes",
    "export",
    "find_runs",
    "forget_batches",
    "format_summary",
    "live_progress",
    "load_curves",
    "messages",
    "quiet_console",
    "read_metrics",
    "turns",
    "write_page",
    "write_parquet",
]
