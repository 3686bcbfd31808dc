"""What a running episode has beside its turns and its sandbox, as plain values: a copy goes on with it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harbor_gym.config.dump_file import DumpFile
from harbor_gym.episode.budgets import Spent
from harbor_gym.episode.episode import DumpedPhase, StoredDump
from harbor_gym.episode.prepared import DumpedEpisode
from harbor_gym.errors import SandboxError, UsageError
from harbor_gym.terminal import Session, TerminalTurn
from harbor_gym.terminal.recording import Recording
from harbor_gym.terminal.scripts import read_script


@dataclass(frozen=True)
class EpisodeState:
    """The state of an episode at a turn boundary."""

    spent: Spent
    paid: float
    """Sum of the rewards paid so far."""

    elapsed_sec: float
    """Since the recording began."""

    step_rewards: list[dict[str, float]]
    tool_metrics: dict[str, float]
    confirmation_pending: bool
    start_info: dict[str, Any]
    last_info: dict[str, Any]
    """That of the last turn, or of ``reset``."""

    phases: list[list[dict[str, Any]]] | None
    """Those of :class:`harbor_gym.episode.trajectory.Trajectory`."""

    recording: Recording | None


@dataclass(frozen=True)
class _Record:
    """All of a dump but the sandbox's processes and files."""

    scripts: str
    """The digest of the scripts that go on in the sandbox."""

    state: EpisodeState
    phase: DumpedPhase
    session: Session
    first_turn: TerminalTurn
    metrics: dict[str, float]


_RECORD = TypeAdapter(_Record)


def store(state: EpisodeState, dumped: DumpedEpisode) -> DumpFile:
    """Return a file of a running episode, from which other processes can begin copies.

    Raises:
        SandboxError: The dump can't be written.
    """
    record = _Record(_scripts(), state, dumped.phase, dumped.session, dumped.first_turn, dumped.metrics)
    try:
        return DumpFile.make(_RECORD.dump_python(record, mode="json"), dumped.phase.dump.pack)
    except OSError as exc:
        raise SandboxError(f"the dump can't be written: {exc}") from exc


def load(file: DumpFile) -> tuple[EpisodeState, DumpedEpisode]:
    """Return what :func:`store` wrote. The caller closes the dump.

    Raises:
        UsageError: As :meth:`harbor_gym.config.dump_file.DumpFile.open`, or another version of this package wrote it.
    """
    opened = file.open()
    try:
        record = _RECORD.validate_python(opened.record)
        if record.scripts != _scripts():
            raise UsageError("the dump is of another version of harbor_gym, whose scripts go on in its sandbox")
    except ValidationError as exc:
        os.close(opened.packed)
        raise UsageError(f"the dump's record can't be read: {exc.errors()[0]['msg']}") from exc
    except UsageError:
        os.close(opened.packed)
        raise
    phase = replace(record.phase, dump=StoredDump(record.phase.dump, opened.packed))
    return record.state, DumpedEpisode(phase, record.session, record.first_turn, record.metrics)


def _scripts() -> str:
    return hashlib.sha256((read_script("step") + read_script("rc")).encode()).hexdigest()
