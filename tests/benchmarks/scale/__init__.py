"""Many sandboxes at the same time, and many episodes one after the other: ``make bench ARGS=scale`` and ``soak``."""

from tests.benchmarks.scale.fleet import ScaleReport, bench_scale
from tests.benchmarks.scale.soak import SoakReport, bench_soak

__all__ = ["ScaleReport", "SoakReport", "bench_scale", "bench_soak"]
