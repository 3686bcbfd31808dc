"""How right the terminal is: each return, judged by every byte that the pane showed."""
