"""One training step's calls of a trainer's environments, beside TRL's own Harbor module; and many resets."""

from tests.benchmarks.trl.resets import ResetsReport, bench_resets
from tests.benchmarks.trl.step import TrlReport, bench_step, format_step

__all__ = ["ResetsReport", "TrlReport", "bench_resets", "bench_step", "format_step"]
