"""The supervisor: a program beside each sandbox, in ``program/``, and the caller's side of it."""
