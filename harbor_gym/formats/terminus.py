"""Terminus-2's two formats, read by Harbor's own parsers.

Guarantees beyond theirs: nothing raises, ``task_complete`` is a bool, durations lie in [0, 60] (NaN is 1.0), keystrokes
that can't be sent to a terminal (NUL, lone surrogates) are parse errors, and every message is read in bounded time.
"""

from harbor_gym.formats.harbor_parser import load_harbor_parser
from harbor_gym.formats.parsed import ParsedAction, as_list, check_commands, failure, success
from harbor_gym.types import ActionFormat

_FOREIGN_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Exceptions that Harbor's parsers may raise for a message that a model can write."""

_MAX_SCANNED_CHARS = 100_000_000
"""About 0.25 s for the XML parser's expressions, some of which read to the end for every open tag."""

_SECTIONS = ("analysis", "plan", "commands", "task_complete")


def parse_terminus_json(text: str) -> ParsedAction:
    """Read one terminus-json-plain message."""
    return _parse(text, ActionFormat.TERMINUS_JSON, "JSON")


def parse_terminus_xml(text: str) -> ParsedAction:
    """Read one terminus-xml-plain message."""
    if _scanned_chars(text) > _MAX_SCANNED_CHARS:
        return failure("Invalid XML: too many tags are left open, or a tag is too long")
    return _parse(text, ActionFormat.TERMINUS_XML, "XML")


def _parse(text: str, action_format: ActionFormat, language: str) -> ParsedAction:
    parser = load_harbor_parser(action_format)
    try:
        verdict = parser.parse_response(text)
    except _FOREIGN_ERRORS as error:
        return failure(f"Invalid {language}: {_explain(error, action_format)}")
    if verdict.error:
        return failure(verdict.error, verdict.warning, verdict.analysis, verdict.plan)
    complete = bool(verdict.is_task_complete)
    commands, problem = check_commands((command.keystrokes, command.duration) for command in verdict.commands)
    warning = verdict.warning
    if problem and not complete:
        return failure(problem, warning, verdict.analysis, verdict.plan)
    if problem:
        warning = "\n".join(filter(None, [warning, as_list([problem])]))
    return success(commands, task_complete=complete, warning=warning, analysis=verdict.analysis, plan=verdict.plan)


def _explain(error: Exception, action_format: ActionFormat) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, IndexError) and action_format is ActionFormat.TERMINUS_XML:
        return "there is nothing but blanks between a '<' and the next '>'; write it without the blanks"
    return f"a value cannot be read ({error})"


def _scanned_chars(text: str) -> int:
    """Estimate how many characters the XML parser's expressions read without a match."""
    scanned = 0
    for section in _SECTIONS:
        start = text.find(f"<{section}>")
        if start >= 0 and text.find(f"</{section}>", start) < 0:
            scanned += text.count(f"<{section}>", start) * (len(text) - start)
    position = 0
    while (start := text.find("<keystrokes", position)) >= 0:
        end = text.find(">", start)
        close = text.find("</keystrokes>", end + 1) if end >= 0 else -1
        if close < 0:
            return scanned + text.count("<keystrokes", start) * (len(text) - start)
        scanned += (end - start) ** 2
        position = close + 1
    return scanned
