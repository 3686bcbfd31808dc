"""What follows a verdict is cleaning up: its failures are reported, and never the end of an episode."""

import contextlib
import logging
from collections.abc import Generator

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def reported(what: str) -> Generator[None]:
    """Log an exception of the block as a warning, after ``what`` failed. For work that follows a verdict."""
    try:
        yield
    except Exception as exc:  # the boundary of an episode
        _logger.warning("%s: %s: %s", what, type(exc).__name__, exc)
