"""Ways to play one scripted episode: an adapter each, through its own rollout code."""
