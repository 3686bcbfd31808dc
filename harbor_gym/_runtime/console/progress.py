"""How long work reports how far it is."""

from collections.abc import Callable

type ShowBar = Callable[[str, int, int | None, str], None]
"""Called as ``bar(phase, done, total, detail)``. The phase is over when ``done`` is ``total``; where the total is not
known it is None, and ``done`` are seconds."""


def show_no_bar(phase: str, done: int, total: int | None, detail: str) -> None:
    """Show nothing."""
