"""What a person sees of a run in the terminal: tables and progress."""
