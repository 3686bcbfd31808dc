"""Two Ray nodes on this machine, and groups of episodes to play on them."""
