"""The ``keystrokes`` format: the whole message is typed unchanged."""

from harbor_gym.formats.parsed import ParsedAction, check_commands, failure, success

COMPLETE_SENTINEL = "<task_complete/>"
"""As a message's last line, on its own: the task is complete. The line itself is not typed."""

KEYSTROKES_DURATION_SEC = 10.0
"""Ceiling on the wait, since this format can't express one; an empty message waits that long."""


def parse_keystrokes(text: str) -> ParsedAction:
    """Read one message of raw keystrokes: a line feed is Enter, and a message that is one key's name is that key.

    The text is not changed, so a message that does not end with a line feed leaves a line unfinished.
    """
    body = text.rstrip()
    complete = body.endswith(COMPLETE_SENTINEL)
    typed = body.removesuffix(COMPLETE_SENTINEL) if complete else text
    if complete and typed and not typed.endswith("\n"):
        complete, typed = False, text
    commands, problem = check_commands([(typed, KEYSTROKES_DURATION_SEC)] if typed or not complete else [])
    return failure(problem) if problem else success(commands, task_complete=complete)
