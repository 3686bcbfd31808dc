"""Serialise calls for another machine, and their results for the way back."""

import io
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, override

import cloudpickle

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.cluster.task_store import PackedTask, pack_task, task_path
from harbor_gym.config import EpisodeConfig
from harbor_gym.tasks.receipts import require_audited

_CONFIG, _OUTPUT = "config", "output"
_STAYS = ("task_dir", "require_audit")
"""Fields of a configuration that name places of the driver's machine."""


@dataclass(frozen=True)
class PackedCall:
    """A pickled function with its arguments."""

    payload: bytes
    digests: frozenset[str]
    """Digests of the tasks that must be in the node's cache before the call is unpacked."""


@dataclass(frozen=True)
class PackedResult:
    """The result of a call."""

    payload: bytes
    """The pickled return value, or exception."""

    is_error: bool
    files: bytes
    """A tar of the files below the output folder; empty if there are none."""


class CallPacker:
    """Packs the calls of one executor. Each task is read once; later changes of its directory have no effect.

    Args:
        output_dir: The driver's folder whose files are written on the node and copied back; None copies no files.
    """

    def __init__(self, output_dir: Path | None) -> None:
        self._output_dir = output_dir
        self._digests: dict[Path, str] = {}
        self.tasks: dict[str, PackedTask] = {}
        """The tasks of all calls so far, by digest."""

    def pack(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PackedCall:
        """Pack a call.

        Raises:
            TaskError: One of its tasks is not a directory of this machine, or is refused by its ``require_audit``.
        """
        buffer, digests = io.BytesIO(), set[str]()
        _Pickler(buffer, self._digest, digests, self._output_dir).dump((function, args, dict(kwargs)))
        return PackedCall(buffer.getvalue(), frozenset(digests))

    def _digest(self, task_dir: Path) -> str:
        key = task_dir.resolve()
        if key not in self._digests:
            task = pack_task(key)
            self._digests[key], self.tasks[task.digest] = task.digest, task
        return self._digests[key]


class _Pickler(cloudpickle.Pickler):
    def __init__(
        self, file: io.BytesIO, digest: Callable[[Path], str], digests: set[str], output_dir: Path | None
    ) -> None:
        super().__init__(file)
        self._digest, self._digests, self._output_dir = digest, digests, output_dir

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, EpisodeConfig) and getattr(obj, "harbor_server", None) is None:  # which has its own files
            require_audited(obj.task_dir, obj)  # here: no node has the folder
            digest = self._digest(obj.task_dir)
            self._digests.add(digest)
            return _CONFIG, type(obj), digest, {name: value for name, value in obj if name not in _STAYS}
        if self._output_dir is not None and isinstance(obj, PurePath) and obj.is_relative_to(self._output_dir):
            return _OUTPUT, obj.relative_to(self._output_dir).as_posix()
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, scratch: Path) -> None:
        super().__init__(file)
        self._scratch = scratch

    @override
    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case (kind, type() as model, str(digest), dict(fields)) if kind == _CONFIG:
                return model(task_dir=task_path(digest), **fields)
            case (kind, str(relative)) if kind == _OUTPUT:
                return self._scratch / PurePosixPath(relative)
            case _:
                raise pickle.UnpicklingError(f"an unknown reference: {pid!r}")


def run_call(call: PackedCall) -> PackedResult:
    """Run a call whose tasks are in this node's cache. An ``Exception`` of the call is returned as its result."""
    scratch = Path(tempfile.mkdtemp(prefix=temporary_prefix("call")))
    try:
        function, args, kwargs = _Unpickler(io.BytesIO(call.payload), scratch).load()
        is_error, outcome = False, None
        try:
            outcome = function(*args, **kwargs)
        except Exception as exc:  # the boundary between two machines: the driver raises it
            is_error, outcome = True, exc
        return PackedResult(cloudpickle.dumps(outcome), is_error, _pack_files(scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def accept_files(result: PackedResult, output_dir: Path | None) -> None:
    """Write a call's files into the driver's output folder."""
    if output_dir is not None and result.files:
        with tarfile.open(fileobj=io.BytesIO(result.files)) as archive:
            archive.extractall(output_dir, filter="data")


def _pack_files(folder: Path) -> bytes:
    if not any(folder.iterdir()):
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name)
    return buffer.getvalue()
