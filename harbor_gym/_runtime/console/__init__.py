"""Output for a person at a terminal: tables and progress."""
