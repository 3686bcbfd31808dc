"""Loggers of one trial each: the logging module keeps every logger for the life of the process."""

import logging


def forget_loggers(top: logging.Logger) -> None:
    """Close a logger's handlers, and remove it and those below it from the logging module's registry.

    A logger that is still referenced can still log. Harbor makes several loggers for each trial: some 5 KiB that would
    never be freed.

    Args:
        top: The trial's logger.
    """
    for handler in tuple(top.handlers):
        top.removeHandler(handler)
        handler.close()
    known = logging.Logger.manager.loggerDict
    below = f"{top.name}."
    names = [name for name in tuple(known) if name == top.name or name.startswith(below)]
    gone = [known.pop(name, None) for name in names]
    parts = top.name.split(".")
    for count in range(1, len(parts)):
        parent = known.get(".".join(parts[:count]))
        if isinstance(parent, logging.PlaceHolder):
            for logger in gone:
                if isinstance(logger, logging.Logger):
                    parent.loggerMap.pop(logger, None)
