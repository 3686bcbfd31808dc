"""Input and output of the terminal: keys, captures, screens, observations."""
