"""A running episode at a turn boundary, as a record from which others go on."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import ValidationError

from harbor_gym.errors import UsageError
from harbor_gym.transcripts import append_turns, read_transcript, write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn

if TYPE_CHECKING:
    from harbor_gym.config import TerminalEnvConfig

SNAPSHOT_FORMAT = 1
"""Version of what a snapshot's file has beside an episode's transcript."""

_OWN = ("task_digest", "seed", "messages")
"""The fields that a snapshot's file has beside a transcript's."""


@dataclass(frozen=True)
class Snapshot:
    """What was done and seen in an episode so far; no files and no processes of its sandbox.

    :meth:`harbor_gym.AsyncTerminalGymEnv.snapshot` makes one, ``TerminalEnvConfig(start_from=…)`` goes on from it.
    """

    config: "TerminalEnvConfig"
    """The episode's, with an absolute ``task_dir``, without its own start and its recording's place."""

    turns: tuple[Turn, ...]
    """Every turn, as in an episode's transcript."""

    observation: str
    """What the last turn showed; before the first one, the instruction and the first screen."""

    start_info: EpisodeInfo
    """What ``reset`` reported."""

    task_digest: str
    """Of the task's files: an episode goes on in the same task alone. Empty where it is not known."""

    seed: int | None = None
    """The seed that ``reset`` was given."""

    tokens: tuple[int, ...] | None = None
    """The prompt after the last turn, token by token, where :class:`harbor_gym.TokenTerminalEnv` made the snapshot."""

    messages: tuple[Mapping[str, Any], ...] | None = None
    """The chat so far, where :func:`harbor_gym.samplers.run_chat_episode` made the snapshot."""

    @property
    def turn(self) -> int:
        """How many turns were taken."""
        return len(self.turns)

    @property
    def transcript(self) -> Transcript:
        """A new transcript of the episode so far."""
        return Transcript(
            list(self.turns),
            self.observation,
            start_info=self.start_info,
            settings=settings_of(self.config),
            tokens=self.tokens,
        )

    def at(self, turn: int) -> Self:
        """Return the snapshot of an earlier turn, with its tokens where they are known, and without a chat.

        Raises:
            UsageError: There is no such turn.
        """
        if turn == self.turn:
            return self
        if not 0 <= turn < self.turn:
            raise UsageError(f"there is no turn {turn}: it is 0 (after reset) to {self.turn}")
        following = self.turns[turn]
        tokens = (self.tokens or ())[: following.prompt_tokens] or None  # each prompt begins with the one before
        earlier = self.turns[:turn]
        return replace(self, turns=earlier, observation=following.observation, tokens=tokens, messages=None)

    def write(self, path: Path) -> None:
        """Write an episode's transcript in JSON, with what that lacks, to ``path``, whole or not at all.

        Raises:
            UsageError: The configuration holds something that JSON has not.
        """
        transcript = self.transcript
        if transcript.settings is None:
            raise UsageError("the snapshot can't be written: its configuration holds what JSON has not")
        own = {"format": SNAPSHOT_FORMAT} | {name: getattr(self, name) for name in _OWN}
        write_transcript(path, transcript, labels={"snapshot": own})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a snapshot, or an episode's transcript as one: before the turn that ended it.

        Args:
            path: What :meth:`write` or :class:`SnapshotFile` wrote, or an ``.json`` of a run's folder ``transcripts``.

        Raises:
            UsageError: The file can't be read, is no snapshot, or one of another version.
        """
        from harbor_gym.config import TerminalEnvConfig, describe_problems

        transcript, document = read_transcript(path)
        own = cast("dict[str, Any]", document.get("snapshot") or {})
        if own and own.get("format") != SNAPSHOT_FORMAT:
            raise UsageError(f"{path} has not the format {SNAPSHOT_FORMAT} of a snapshot, which this version reads")
        if transcript.settings is None:
            raise UsageError(f"{path} does not tell its episode's configuration: no other can go on from it")
        try:
            known = TerminalEnvConfig.model_validate(transcript.settings)
        except ValidationError as exc:
            raise UsageError(f"{path}: its configuration does not fit this version: {describe_problems(exc)}") from exc
        messages, tokens = own.get("messages"), transcript.tokens or own.get("tokens")  # where older files have them
        read = cls(
            config=known,
            turns=tuple(transcript.turns),
            observation=transcript.final_observation,
            start_info=transcript.start_info or EpisodeInfo(turn=0, metrics={}),
            task_digest=own.get("task_digest", ""),
            seed=own.get("seed"),
            tokens=None if tokens is None else tuple(tokens),
            messages=None if messages is None else tuple(messages),
        )
        return read.at(read.turn - 1) if document.get("end_reason") and read.turns else read


class SnapshotFile:
    """A running episode on disk: :meth:`Snapshot.read` reads what was kept last, also after a kill in the middle.

    Args:
        path: The file; its folder is made if need be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: Snapshot | None = None

    def keep(self, snapshot: Snapshot) -> None:
        """Write an episode's snapshot; of a later one, append only what it has since.

        Raises:
            UsageError: As :meth:`Snapshot.write`.
        """
        kept, self._kept = self._kept, None  # behind a failed write the next one is whole
        if kept is None:
            snapshot.write(self._path)
        else:
            said = (snapshot.messages or ())[len(kept.messages or ()) :]
            append_turns(self._path, snapshot.transcript, after=kept.transcript, messages=said)
        self._kept = snapshot


type KeepSnapshot = Callable[[Snapshot], Awaitable[None]]
"""Takes an episode as it stands before the policy's next answer, to go on from it later."""


def read_start(start: Path | Snapshot | None) -> Snapshot | None:
    """Return the snapshot that a configuration's ``start_from`` names; a file is read once, until it changes.

    Raises:
        UsageError: As :meth:`Snapshot.read`.
    """
    if not isinstance(start, Path):
        return start
    try:
        state = start.stat()
    except OSError:
        return Snapshot.read(start)  # which states why
    return _read(start, state.st_ino, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=1)
def _read(path: Path, *_version: int) -> Snapshot:
    return Snapshot.read(path)


def settings_of(config: object) -> dict[str, Any] | None:
    """Return a terminal's configuration as JSON; None of another one, or where it holds what JSON has not."""
    from harbor_gym.config import TerminalEnvConfig

    if not isinstance(config, TerminalEnvConfig):
        return None
    try:
        written = config.model_dump(mode="json", exclude={"start_from", "recording_path"})
    except ValueError:
        return None
    return {**written, "task_dir": str(config.task_dir.resolve())}
