"""A policy, its engine, and replacements for GPU kernels, with which TRL's trainers run on a CPU without a cloud."""
