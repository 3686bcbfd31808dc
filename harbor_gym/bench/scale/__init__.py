"""Many sandboxes at the same time, and many episodes one after the other: ``harbor-gym bench scale`` and ``soak``."""

from harbor_gym.bench.scale.fleet import ScaleReport, bench_scale
from harbor_gym.bench.scale.soak import SoakReport, bench_soak

__all__ = ["ScaleReport", "SoakReport", "bench_scale", "bench_soak"]
