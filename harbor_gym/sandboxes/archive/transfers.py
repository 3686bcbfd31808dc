"""The caller's side of a transfer between this machine's files and a process that sees a sandbox's files.

Both exchange records (:mod:`.trees`), never an archive. This side works in a thread unless there is little to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from harbor.models.trial.paths import EnvironmentPaths

from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym._runtime.shielded import ended, shielded
from harbor_gym.sandboxes.archive.trees.receiving import OntoHost, Receiver
from harbor_gym.sandboxes.archive.trees.records import (
    ALL,
    END,
    FILE,
    Allowance,
    Choice,
    Collected,
    SandboxGoneError,
    Stream,
    StreamEndedError,
    TransferError,
)
from harbor_gym.sandboxes.archive.trees.sending import Sender
from harbor_gym.sandboxes.errors import SandboxError, SandboxLostError, SandboxTimeoutError

TIMEOUT_SEC = 600.0
"""As long as Harbor's own transfers may take; the limits of size are reached long before."""

DEFAULT_STORAGE_MB = 2048
"""Storage of a sandbox whose task sets no limit, in MiB."""

_VERIFIER_DIR = EnvironmentPaths().verifier_dir
_REWARDS = tuple(path.name for path in (EnvironmentPaths().reward_text_path, EnvironmentPaths().reward_json_path))

Work = Callable[[Stream, Callable[[], None]], None]
"""This machine's side of a transfer: takes the stream, and a function that raises once it must stop."""

AT_ONCE_BYTES, _AT_ONCE_ENTRIES = 1 << 14, 64
"""The largest transfer that needs no thread: a socket holds it, and its files are no more than Harbor's of a trial."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """The work of a side that only receives, which needs no thread if all of it has arrived and is small.

    Args:
        receive: The work.
        first: Sent before, at most :data:`AT_ONCE_BYTES`.
    """

    receive: Work
    first: bytes = b""

    def __call__(self, stream: Stream, check: Callable[[], None]) -> None:
        """Receive."""
        self.receive(stream, check)


def choice_in(source: str, choice: Choice) -> Choice:
    """Return the selection of a download, which cuts the reward files if the directory is the verifier's."""
    return choice._replace(rewards=_REWARDS) if PurePosixPath(source) == _VERIFIER_DIR else choice


def limit_bytes(storage_mb: int | None) -> int:
    """Return the limit of a sandbox's transfers in bytes: four times its storage, which is given in MiB.

    Sparse files and the image's files make a tree larger than the written data. None and 0, which some sandboxes take
    for no limit, stand for the default storage.
    """
    return 4 * ((storage_mb or DEFAULT_STORAGE_MB) << 20)


async def in_thread(work: Callable[[], None], hang_up: Callable[[], None]) -> None:
    """Do ``work`` in a thread of its own, which has ended when this returns.

    Args:
        work: The work; ``hang_up`` ends all its blocking calls.
        hang_up: Called when the time is over or the caller is cancelled.

    Raises:
        SandboxTimeoutError: It took longer than :data:`TIMEOUT_SEC`.
    """
    with ThreadPoolExecutor(1, "harbor-gym-transfer") as pool:
        running = asyncio.get_running_loop().run_in_executor(pool, work)
        try:
            await in_time(ended(running))
        finally:
            if not running.done():
                hang_up()
                await shielded(asyncio.wait((running,)))
            running.exception()  # retrieved: asyncio would log it
        running.result()


async def in_time(wait: Awaitable[None]) -> None:
    """Wait for a part of a transfer.

    Raises:
        SandboxTimeoutError: It took longer than :data:`TIMEOUT_SEC`.
    """
    try:
        async with asyncio.timeout(TIMEOUT_SEC):
            await wait
    except TimeoutError:
        raise SandboxTimeoutError(f"it took longer than {TIMEOUT_SEC:g} s") from None


@contextlib.contextmanager
def explained(what: str) -> Generator[None]:
    """Turn the errors of a transfer into a sandbox's errors: "can't {what}: ..."."""
    try:
        yield
    except SandboxTimeoutError as exc:
        raise SandboxTimeoutError(f"can't {what}: {exc}") from None
    except SandboxGoneError as exc:
        raise SandboxLostError(f"can't {what}: {exc}") from exc
    except (TransferError, StreamEndedError) as exc:
        raise SandboxError(f"can't {what}: {exc}") from exc


Way = Callable[[Mapping[str, Any], Work], Awaitable[None]]
"""Does one sandbox's transfers: takes the spec for the sandbox's side, and this machine's work."""


def knowing_empty(way: Way, empty: set[str]) -> Way:
    """Return a way that asks nobody for a download of an empty directory, or for an upload of nothing to it.

    Args:
        way: The sandbox's.
        empty: The paths of its directories that are empty; any other upload clears it.
    """

    async def carry(spec: Mapping[str, Any], work: Work) -> None:
        is_upload_of_nothing = isinstance(work, Receiving) and work.first == _NOTHING
        if spec["path"] in empty and (spec["work"] == "download_dir" or is_upload_of_nothing):
            work(Stream(-1, _NOTHING), lambda: None)
            return
        if spec["work"].startswith("upload"):
            empty.clear()
        await way(spec, work)

    return carry


_Kind = Literal["upload_file", "upload_dir", "download_file", "download_dir"]


def _spec(work: _Kind, path: str, limit: int) -> dict[str, Any]:
    return {"work": work, "path": os.fsencode(path).decode("latin-1"), "limit_bytes": limit}


async def upload_file(way: Way, source: Path, target: str, limit_bytes: int) -> None:
    """Copy a file into a sandbox, into ``target`` if that is a directory.

    Raises:
        OSError: This machine's file can't be read.
        SandboxError: It is too large, or the sandbox has no place for it.
    """

    def send(stream: Stream, allowance: Allowance) -> None:
        with opened(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as content:
            if not stat.S_ISREG(os.fstat(content).st_mode):
                raise TransferError(f"{source} is no ordinary file")
            Sender(stream, allowance).send_file(content, os.fsencode(source.name))

    with explained(f"upload {source} to {target}"):
        await _upload(way, _spec("upload_file", target, limit_bytes), send)


async def upload_dir(way: Way, source: Path, target: str, limit_bytes: int, executable: str = "") -> bool | None:
    """Copy the contents of a directory into one of a sandbox, made if absent.

    Args:
        way: The sandbox's.
        source: The directory.
        target: That of the sandbox.
        limit_bytes: The limit of the whole.
        executable: The path of a file in it that all may execute there; none if empty.

    Returns:
        Whether that path was a file; None if nothing was there.

    Raises:
        FileNotFoundError: This machine has no such directory.
        OSError: Something in it can't be read.
        SandboxError: It is too large, or there is no place for it.
    """
    has_executable: bool | None = None

    def send(stream: Stream, allowance: Allowance) -> None:
        nonlocal has_executable
        if not source.is_dir():
            raise FileNotFoundError(f"{source} is not a directory of this machine")
        sender = Sender(stream, allowance, executable=os.fsencode(executable))
        with opened(source, os.O_RDONLY | os.O_DIRECTORY) as directory:
            sender.send_tree(directory)
        has_executable = sender.has_executable

    with explained(f"upload {source} to {target}"):
        await _upload(way, _spec("upload_dir", target, limit_bytes), send)
    return has_executable


async def _upload(way: Way, spec: Mapping[str, Any], send: Callable[[Stream, Allowance], None]) -> None:
    if (records := _packed(send)) is not None:
        await way(spec, Receiving(_confirmed, records))
        return

    def work(stream: Stream, check: Callable[[], None]) -> None:
        with contextlib.suppress(StreamEndedError):  # the other side has sent why
            send(stream, Allowance(spec["limit_bytes"], check))
        _confirmed(stream, check)

    await way(spec, work)


def _packed(send: Callable[[Stream, Allowance], None]) -> bytes | None:
    """Return the records of a small upload; None if it is larger, or fails in a way that its sending will state."""
    steps = itertools.count()

    def check() -> None:
        if next(steps) > _AT_ONCE_ENTRIES:
            raise TransferError("it is not small")

    stream = Collected()
    try:
        send(stream, Allowance(AT_ONCE_BYTES, check))
    except TransferError:
        return None
    return stream.records if len(stream.records) <= AT_ONCE_BYTES else None


def _end() -> bytes:
    stream = Collected()
    stream.send(END)
    stream.flush()
    return stream.records


_NOTHING = _end()
"""The records of an empty directory, and of a confirmation."""


def _confirmed(stream: Stream, _check: Callable[[], None]) -> None:
    if stream.receive().kind != END:
        raise TransferError("the other side of the transfer sends records out of order")


async def download_file(way: Way, source: str, target: Path, limit_bytes: int) -> None:
    """Copy a file of a sandbox, links followed inside; into ``target`` if that is a directory.

    Raises:
        SandboxError: There is no such file, it is too large, or it can't be written.
    """
    name = PurePosixPath(source).name
    with explained(f"download {source}"):
        await way(
            _spec("download_file", source, limit_bytes),
            Receiving(lambda stream, check: receive_file(stream, target, name, Allowance(limit_bytes, check))),
        )


async def download_dir(way: Way, source: str, target: Path, limit_bytes: int, choice: Choice = ALL) -> None:
    """Copy the contents of a sandbox's directory into one of this machine, made if absent.

    Raises:
        SandboxError: There is no such directory, it is too large, or it can't be written.
    """
    spec = {**_spec("download_dir", source, limit_bytes), "choice": choice_in(source, choice)._asdict()}
    with explained(f"download {source}"):
        await way(spec, Receiving(lambda stream, check: receive_dir(stream, target, Allowance(limit_bytes, check))))


def receive_file(stream: Stream, target: Path, name: str, allowance: Allowance) -> None:
    """Write the file of a stream, as ``name`` if ``target`` is a directory. A failure leaves no new file.

    Raises:
        TransferError: The other side failed, or this one can't write.
    """
    record = stream.receive()
    if record.kind != FILE:
        raise TransferError("the other side sends no file")
    with _failing_here(target):
        if target.is_dir():
            target = target / name
        target.parent.mkdir(parents=True, exist_ok=True)
        is_new = not target.exists()
        try:
            with opened(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666) as handle:
                Receiver(stream, allowance, OntoHost()).write_content(handle, record)
        except BaseException:
            if is_new:
                target.unlink(missing_ok=True)
            raise


def receive_dir(stream: Stream, target: Path, allowance: Allowance) -> None:
    """Write the tree of a stream into ``target``, made if absent.

    Raises:
        TransferError: The other side failed, or this one can't write.
    """
    with _failing_here(target):
        if not target.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        with opened(target, os.O_RDONLY | os.O_DIRECTORY) as directory:
            Receiver(stream, allowance, OntoHost()).receive_tree(directory)


@contextlib.contextmanager
def _failing_here(target: Path) -> Generator[None]:
    try:
        yield
    except OSError as exc:
        why = describe_disk_failure(exc, target) or exc
        raise TransferError(f"this machine can't write below {target}: {why}") from exc


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = 0o777) -> Generator[int]:
    """Open a file or directory of this machine."""
    handle = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield handle
    finally:
        os.close(handle)


def measure(source: Path, limit_bytes: int) -> None:
    """Check that a file, or a directory with its contents, may be transferred, before it is packed.

    Raises:
        TransferError: It is too large, has too many files, or is nested too deep.
    """
    allowance = Allowance(limit_bytes)
    if not source.is_dir():
        allowance.take_bytes(source.stat().st_size, os.fsencode(source.name))
        return
    for at, folders, files in os.walk(source):
        place = Path(at).relative_to(source)
        allowance.check_depth(len(place.parts), os.fsencode(place))
        for name in (*folders, *files):
            path, status = os.fsencode(place / name), (Path(at) / name).lstat()
            allowance.take_entry(path)
            if stat.S_ISREG(status.st_mode):
                allowance.take_bytes(status.st_size, path)
