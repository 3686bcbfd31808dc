"""Snapshots: a running episode at a turn boundary, as a record from which other episodes go on."""

import contextlib
import functools
import logging
from asyncio import CancelledError
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import ValidationError

from harbor_gym._runtime.files import StrPath, open_regular
from harbor_gym._runtime.shielded import shielded
from harbor_gym.config.dump_file import DumpFile, remove_dumps
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.transcripts import append_turns, conversations, read_transcript, transitions_of, write_transcript
from harbor_gym.types import EpisodeInfo, ForkMode, TokenTransition, Transcript, Turn

if TYPE_CHECKING:
    from harbor_gym.config import TerminalEnvConfig

SNAPSHOT_FORMAT = 1
"""Version of the fields that a snapshot's file has beside a transcript's."""

NO_START: Mapping[str, Any] = {"start_from": None, "start_mode": "auto", "start_turn": None, "start_where": ()}
"""The fields of a configuration that say where an episode begins, as they are for one that begins with its task."""

_NOT_KEPT = ("recording_path", "require_audit", "refused_findings")
"""Fields of a configuration that do not say how an episode went."""

_OWN = ("task_digest", "seed", "messages")
"""The fields that a snapshot's file has beside a transcript's."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Snapshot:
    """The actions and observations of an episode so far, and perhaps a dump of the processes and files of its sandbox.

    :meth:`harbor_gym.AsyncTerminalGymEnv.snapshot` makes one, ``TerminalEnvConfig(start_from=…)`` goes on from it.
    """

    config: "TerminalEnvConfig"
    """The episode's configuration, with an absolute ``task_dir``, without ``start_from`` and ``recording_path``."""

    turns: tuple[Turn, ...]
    """Every turn, as in an episode's transcript."""

    observation: str
    """The last turn's observation; before the first turn, the instruction and the first screen."""

    start_info: EpisodeInfo
    """The ``info`` of ``reset``."""

    task_digest: str
    """Digest of the task's files, as an episode goes on only in the same task; empty where it is unknown."""

    seed: int | None = None
    """The seed that ``reset`` was given."""

    tokens: tuple[int, ...] | None = None
    """Token ids of the prompt after the last turn, where :class:`harbor_gym.TokenTerminalEnv` made the snapshot."""

    messages: tuple[Mapping[str, Any], ...] | None = None
    """The chat so far, where :func:`harbor_gym.samplers.run_chat_episode` made the snapshot."""

    dump: DumpFile | None = field(default=None, compare=False)
    """The sandbox's processes and files, where the snapshot was taken with a mode that copies them. It takes room among
    the temporary files until :meth:`close`, or until it is no longer used."""

    def __repr__(self) -> str:
        with_dump = "" if self.dump is None else ", with its processes"
        return (
            f"<{type(self).__name__} {self.config.task_dir.name} on {self.config.sandbox}: turn {self.turn}{with_dump}>"
        )

    @property
    def turn(self) -> int:
        """The number of turns taken."""
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

    @property
    def transitions(self) -> list[TokenTransition]:
        """The turns with their tokens, and summaries, as :func:`harbor_gym.run_episode` would have returned them.

        The rollout of an episode that goes on from here begins after them. Log-probabilities of a snapshot that was
        read from a file have 4 decimals.

        Raises:
            UsageError: The snapshot has no tokens.
        """
        if self.tokens is None:
            raise UsageError("the snapshot has no tokens: a policy in text played its episode")
        return transitions_of(self.turns, self.tokens)

    def at(self, turn: int) -> Self:
        """Return the snapshot of an earlier turn, with its tokens if they are known, without a chat and a dump.

        Raises:
            UsageError: There is no such turn.
        """
        if turn == self.turn:
            return self
        if not 0 <= turn < self.turn:
            raise UsageError(f"there is no turn {turn}: it is 0 (after reset) to {self.turn}")
        following = self.turns[turn]
        conversation = conversations(self.turns, self.tokens or ())[turn]
        tokens = tuple(conversation[: following.prompt_tokens]) or None
        earlier = self.turns[:turn]
        return replace(self, turns=earlier, observation=following.observation, tokens=tokens, messages=None, dump=None)

    def write(self, path: StrPath) -> None:
        """Write the snapshot to ``path`` as JSON, a transcript with further fields; whole or not at all.

        A dump is written beside it (``NAME.….dump``) and belongs to it: move or remove the two together. It holds the
        memory of the policy's programs. The dump of a snapshot that is replaced is removed.

        Raises:
            UsageError: The configuration holds a value that JSON can't express.
        """
        path, transcript = Path(path), self.transcript
        if transcript.settings is None:
            raise UsageError("the snapshot can't be written: its configuration holds a value that JSON can't express")
        own: dict[str, Any] = {"format": SNAPSHOT_FORMAT} | {name: getattr(self, name) for name in _OWN}
        written = None
        if self.dump is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            written = self.dump.write(path)
            own["dump"] = {"file": written.name, "sha256": self.dump.digest, "turn": self.turn}
        write_transcript(path, transcript, labels={"snapshot": own})
        remove_dumps(path, but=written)

    def close(self) -> None:
        """Free the dump, if there is one that was not read from a file. Idempotent; what began from it goes on."""
        if self.dump is not None:
            self.dump.close()

    @staticmethod
    def remove(path: StrPath) -> None:
        """Remove a snapshot's file, if it is there, and its dump."""
        path = Path(path)
        path.unlink(missing_ok=True)
        remove_dumps(path)

    @classmethod
    def read(cls, path: StrPath) -> Self:
        """Read a snapshot, or an episode's transcript as one: before the turn that ended it.

        Args:
            path: A file of :meth:`write` or :class:`SnapshotFile`, or a ``.json`` of a run's folder ``transcripts``.

        Raises:
            UsageError: The file can't be read, is no snapshot, or has another version's format.
        """
        from harbor_gym.config import TerminalEnvConfig, describe_problems

        path = Path(path)
        transcript, document = read_transcript(path)
        own = cast("dict[str, Any]", document.get("snapshot") or {})
        if own and own.get("format") != SNAPSHOT_FORMAT:
            raise UsageError(f"{path} has not the format {SNAPSHOT_FORMAT} of a snapshot, which this version reads")
        if transcript.settings is None:
            raise UsageError(f"{path} lacks its episode's configuration: no other episode can go on from it")
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
            dump=_dump_of(path, own, len(transcript.turns)),
        )
        return read.at(read.turn - 1) if document.get("end_reason") and read.turns else read


def _dump_of(path: Path, own: Mapping[str, Any], turn: int) -> DumpFile | None:
    """Return the dump that a snapshot's file names; None if turns were added to the file since."""
    match own.get("dump"):
        case {"file": str(name), "sha256": str(digest), "turn": int(at)} if at == turn:
            return DumpFile(path.with_name(Path(name).name), digest, named_by=path)
        case _:
            return None


class SnapshotFile:
    """A running episode on disk: :meth:`Snapshot.read` reads its last snapshot, also after a kill during a write.

    Args:
        path: The file; its folder is made if it is missing.
        begun: The file's snapshot, where the episode goes on from it: it stays, with its dump, until there is a turn.
    """

    def __init__(self, path: StrPath, begun: Snapshot | None = None) -> None:
        self._path = Path(path)
        self._begun = begun
        self._kept: Snapshot | None = None

    def keep(self, snapshot: Snapshot) -> None:
        """Write an episode's snapshot; for a later one without a dump, append only what is new.

        Raises:
            UsageError: As :meth:`Snapshot.write`.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun.turn == snapshot.turn and snapshot.dump is None:
            return
        kept, self._kept = self._kept, None  # after a failed write the next one writes the whole snapshot
        if kept is None or snapshot.dump is not None or not _extends(snapshot, kept):
            snapshot.write(self._path)
        else:
            said = (snapshot.messages or ())[len(kept.messages or ()) :]
            append_turns(self._path, snapshot.transcript, after=kept.transcript, messages=said)
        self._kept = snapshot


def _extends(snapshot: Snapshot, kept: Snapshot) -> bool:
    known = kept.tokens or ()
    return (snapshot.tokens or ())[: len(known)] == known


type KeepSnapshot = Callable[[Snapshot], Awaitable[None]]
"""Stores the snapshot before each answer of the policy, from which the episode can go on later.

Where the wait for an answer is cancelled, it is called once more: with a dump, which is freed after the call, if the
sandbox can be copied exactly.
"""


@contextlib.asynccontextmanager
async def suspending(
    keep: KeepSnapshot | None, take: Callable[[ForkMode], Awaitable[Snapshot]]
) -> AsyncGenerator[None]:
    """Pass snapshots to ``keep``: before the block, which waits for the policy's answer, and when it is cancelled.

    Args:
        keep: Gets the snapshots; None takes none.
        take: Takes a snapshot of the running episode.
    """
    if keep is None:
        yield
        return
    try:
        await keep(await take("replay"))
        yield
    except CancelledError:
        await shielded(_suspend(keep, take))
        raise


async def _suspend(keep: KeepSnapshot, take: Callable[[ForkMode], Awaitable[Snapshot]]) -> None:
    try:
        with contextlib.closing(await take("auto")) as snapshot:
            await keep(snapshot)
    except (HarborGymError, OSError) as exc:
        _logger.warning("an episode was interrupted, and its processes are not kept: %s", exc)


def has_to_be_drawn(config: object) -> bool:
    """Return whether a configuration's ``start_from`` is a folder, or ``start_turn`` a rule: no turn of one episode."""
    start = getattr(config, "start_from", None)
    return isinstance(start, Path) and (isinstance(getattr(config, "start_turn", None), str) or start.is_dir())


def read_start(config: object) -> Snapshot | None:
    """Return the snapshot at which a configuration's episode begins; a file is read once, until it changes.

    Raises:
        UsageError: As :meth:`Snapshot.read`; there is no such turn; or the start has to be drawn first.
    """
    start: Path | Snapshot | None = getattr(config, "start_from", None)
    if not isinstance(start, Path):
        return start
    if has_to_be_drawn(config):
        raise UsageError(
            f"start_from: an episode begins at one turn of one transcript, and {start} leaves the choice: only train, "
            "sweep, eval and harbor_gym.starts.Starts draw one, so give a transcript, and a number as start_turn"
        )
    turn: int | None = getattr(config, "start_turn", None)
    snapshot = _read_once(start)
    try:
        return snapshot if turn is None else snapshot.at(turn)
    except UsageError as exc:
        raise UsageError(f"start_turn: {start}: {exc}") from exc


def read_defaults(start: Path | Snapshot) -> Snapshot:
    """Return the snapshot whose configuration is the default beside ``start_from``: of a folder, the first in it.

    Raises:
        UsageError: As :meth:`Snapshot.read`, or the folder has no transcript from which an episode can begin.
    """
    if not isinstance(start, Path):
        return start
    if not start.is_dir():
        return _read_once(start)
    for path in sorted(start.rglob("*.json")):
        with contextlib.suppress(OSError, UsageError):
            open_regular(path, start).close()
            return _read_once(path)
    raise UsageError(f"start_from: {start} has no transcript of our own loop: give a run, or a folder of transcripts")


def _read_once(start: Path) -> Snapshot:
    try:
        state = start.stat()
    except OSError:
        return Snapshot.read(start)  # its error states why
    return _read(start, state.st_ino, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=4)
def _read(path: Path, *_version: int) -> Snapshot:
    return Snapshot.read(path)


def settings_of(config: object) -> dict[str, Any] | None:
    """Return a :class:`TerminalEnvConfig` as JSON values; None if it is no such object, or JSON can't express it."""
    from harbor_gym.config import TerminalEnvConfig

    if not isinstance(config, TerminalEnvConfig):
        return None
    try:
        written = config.model_dump(mode="json", exclude={*NO_START, *_NOT_KEPT})
    except ValueError:
        return None
    return {**written, "task_dir": str(config.task_dir.resolve())}
