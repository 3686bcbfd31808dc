"""How a step reaches the terminal's session in the sandbox, and how the answer comes back."""
