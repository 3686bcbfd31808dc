"""In NeMo Gym's own environment: see docs/nemo_gym.md."""
