"""What TRL's trainers need to run on a CPU without a cloud: a policy, its engine, and stand-ins for GPU kernels."""
