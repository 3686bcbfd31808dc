"""The ``terminal_notes`` harness: ``bash``, and a scratchpad outside the chat."""

from typing import override

from harbor_gym.adapters.trl.bash import BashHarness
from harbor_gym.adapters.trl.harness import HarnessSettings
from harbor_gym.errors import UsageError

NOTES_TOOL_VERSION = "1"
"""Version of the scratchpad's tools as the prompt shows them, see ``BASH_TOOL_VERSION``."""

MAX_NOTES_BYTES = 10_000
"""Longest text of all notes together, as UTF-8."""

_NO_NOTES = "[no notes]"


class TerminalNotesHarness(BashHarness):
    """The tool ``bash``, and tools that write and read notes.

    The notes are kept outside the chat, the terminal and the sandbox: they stay complete when earlier messages are cut
    from the context, and after the shell has ended. They end with the episode, and the verifier can't read them.
    """

    def __init__(self, settings: HarnessSettings) -> None:
        super().__init__(settings)
        self._notes: list[str] = []

    @override
    def reset(self, *, task_index: int | None = None, **row: object) -> None:
        self._notes = []
        super().reset(task_index=task_index, **row)

    def write_note(self, text: str) -> str:
        """Add a note to the scratchpad, which stays readable when earlier messages are no longer shown.

        Args:
            text: The note: what was found, what was done, what comes next.

        Returns:
            The note's number, and how much room is left.
        """
        self._require_reset()
        note = require_text("text", text).strip()
        if not note:
            raise UsageError("the note is empty")
        size = _size([*self._notes, note])
        if size > MAX_NOTES_BYTES:
            raise UsageError(
                f"the scratchpad holds {MAX_NOTES_BYTES} bytes and this note would make it {size}: shorten it, or "
                "clear the others first"
            )
        self._notes.append(note)
        return f"[note {len(self._notes)} is written; {MAX_NOTES_BYTES - size} bytes are left]"

    def read_notes(self) -> str:
        """Return every note of this task, the oldest first.

        Returns:
            The numbered notes.
        """
        self._require_reset()
        return "\n".join(f"{number}. {note}" for number, note in enumerate(self._notes, start=1)) or _NO_NOTES

    def clear_notes(self) -> str:
        """Remove every note.

        Returns:
            How many there were.
        """
        self._require_reset()
        count, self._notes = len(self._notes), []
        return f"[{count} notes are removed]"


def require_text(name: str, value: object) -> str:
    """Return a tool's argument after checking it, because a policy may write any JSON.

    Raises:
        UsageError: The argument is not a string, or can't be encoded as UTF-8.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{name} holds half of a surrogate pair, at character {exc.start}") from exc
    return value


def _size(notes: list[str]) -> int:
    return sum(len(note.encode()) for note in notes)
