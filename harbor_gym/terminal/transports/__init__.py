"""Transports: carry a step to the terminal's session in the sandbox, and its answer back."""
