"""How right the terminal is: what it returned, judged by every byte that the pane showed."""
