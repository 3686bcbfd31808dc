"""Benchmarks of the terminal, side by side with Harbor's own: ``harbor-gym bench``."""

from harbor_gym.bench.concurrency import ConcurrencyReport, bench_concurrency
from harbor_gym.bench.report import StepReport, StepRow
from harbor_gym.bench.sandbox import started_environment
from harbor_gym.bench.steps import bench_steps

__all__ = ["ConcurrencyReport", "StepReport", "StepRow", "bench_concurrency", "bench_steps", "started_environment"]
