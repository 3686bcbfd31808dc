"""What is typed and what is shown: keys, captures, screens, observations."""
