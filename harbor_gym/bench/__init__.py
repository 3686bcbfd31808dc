"""Benchmarks of steps, resets and episodes, compared with Harbor's own: ``harbor-gym bench``."""
