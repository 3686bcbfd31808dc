"""The embedded training server as a child process on loopback."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.console.progress import ticking
from harbor_gym._runtime.files import replace_text
from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym._runtime.processes import tool_environment
from harbor_gym._runtime.procfs import read_stat
from harbor_gym._runtime.shielded import shielded
from harbor_gym.checking.capacity import free_memory_mb
from harbor_gym.embedded.launcher import READY, TRANSFORMERS
from harbor_gym.errors import HarborGymError, UsageError

_LAUNCHER = Path(__file__).with_name("launcher.py")
_LORA_SLOTS = 8
"""Adapters that the server holds at once. A client's slot is freed only after its session timed out (300 s), so several
successive clients must fit; slot 0 is the base model's."""
_SEQUENCES_AT_ONCE = 8
"""Sequences that are sampled together."""
_KEPT_SHARE = 8
"""The part of the free memory, as its divisor, that may hold what was computed of earlier turns."""
STARTING = "starting the embedded training server"
"""The phase of the progress in which a server starts."""

_LAST_START = "last-server-start.json"
"""File in the cache with the last :class:`LastStart`."""

_POLL_SEC = 0.1
_GRACE_SEC = 4.0
"""Seconds between SIGTERM and SIGKILL: the server gives open requests 1 s, then stops its engine."""
_REAP_SEC = 2.0
_LOG_TAIL_BYTES = 4000


class TrainingServerError(HarborGymError):
    """The embedded training server did not start, or ended by itself."""

    is_infrastructure = True


@dataclass(frozen=True)
class LastStart:
    """A start of the server on this machine."""

    seconds: float
    """From the process's start until the model was loaded."""

    model_dir: str

    when: str
    """The time at its end, in ISO 8601."""


class TrainingServer:
    """Run SkyRL's Tinker-compatible server for one model directory.

    Use it as an async context manager, or call :meth:`start` and :meth:`stop`. The server and its engine end with
    this process, even if that is killed. An instance starts only once.
    """

    def __init__(
        self,
        model_dir: Path,
        state_dir: Path,
        *,
        max_lora_rank: int = 32,
        python: str = sys.executable,
        stall_timeout_sec: float = 300,
        device: str | None = None,
    ) -> None:
        """Configure the server; nothing runs before :meth:`start`.

        Args:
            model_dir: Hugging Face model directory; its absolute path is also the client's ``model_name``.
            state_dir: Directory of the database, the checkpoints and ``server.log``. A later server in the same
                directory has the same checkpoints; two at once are refused.
            max_lora_rank: Largest rank that a client may request.
            python: Interpreter that has SkyRL; harbor_gym need not be installed there.
            stall_timeout_sec: Longest pause, in seconds, in which :meth:`start` sees no progress: the server uses no
                processor time, and does nothing new. A start that makes progress may take any time.
            device: Where the engine computes: ``cpu``, ``cuda`` or ``cuda:1``. None is CUDA where the
                server's torch sees a GPU, and else the CPU.
        """
        self.model_dir = model_dir.resolve()
        self.state_dir = state_dir.resolve()
        self.log_path = self.state_dir / "server.log"
        self._max_lora_rank = max_lora_rank
        self._device = device
        self._python = python
        self._stall_timeout_sec = stall_timeout_sec
        self._process: asyncio.subprocess.Process | None = None
        self._port: int | None = None
        self._lock: IO[str] | None = None
        self._stopping = False

    @property
    def base_url(self) -> str:
        """Address for ``tinker.ServiceClient(base_url=...)``.

        Raises:
            UsageError: The server was never started.
        """
        if self._port is None:
            raise UsageError("the training server has no address yet; start() it first")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the server, also its process group's; None if it does not run."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> None:
        """Start the server and wait until its engine has loaded the model; show meanwhile what it does.

        Raises:
            UsageError: The server was started before, ``model_dir`` is not a model, or ``state_dir`` is in use.
            TrainingServerError: The server ended or made no progress; the message has the log's end.
        """
        if self._port is not None:
            raise UsageError("this training server was started before; make a new TrainingServer")
        if not (self.model_dir / "config.json").is_file():
            raise UsageError(f"{self.model_dir} is not a model directory: it has no config.json")
        try:
            self._claim_state_dir()
            last = last_start()
            usual = f"; the last start took {last.seconds:.0f} s" if last is not None else ""
            with ticking(STARTING, usual.lstrip("; ")) as work:
                started = time.monotonic()
                await self._spawn()
                await self._wait_until_ready(lambda doing: work.tell(doing + usual))
            _note_start(LastStart(round(time.monotonic() - started, 1), str(self.model_dir), _now()))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop server and engine and wait until both have ended. Idempotent, at any time."""
        self._stopping = True
        if self._process is not None:
            await shielded(_end_process_group(self._process))
        shutil.rmtree(self.state_dir / "tmp", ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def monitor(self) -> None:
        """Wait until :meth:`stop` ends the server; run it concurrently with the training to notice a crash at once.

        Raises:
            UsageError: The server was never started.
            TrainingServerError: The server ended by itself; the message has the log's end.
        """
        if self._process is None:
            raise UsageError("there is no training server to monitor; start() it first")
        await self._process.wait()
        if not self._stopping:
            raise self._error(f"ended by itself with exit code {self._process.returncode}")

    def client_environment(self) -> dict[str, str]:
        """Return the environment variables of a client of this server, read when ``tinker`` makes one."""
        no_proxy = [host for host in os.environ.get("NO_PROXY", "").split(",") if host]
        return {
            "TINKER_API_KEY": "tml-embedded",
            "TINKER_BASE_URL": self.base_url,
            "TINKER_TELEMETRY": "0",
            "HF_HUB_OFFLINE": "1",
            "NO_PROXY": ",".join(dict.fromkeys([*no_proxy, "127.0.0.1"])),
        }

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _claim_state_dir(self) -> None:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        lock = (self.state_dir / "lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise UsageError(
                f"a training server is running in {self.state_dir}, for a run or an evaluation of its policy: wait for "
                "its end"
            ) from None
        self._lock = lock
        shutil.rmtree(self.state_dir / "tmp", ignore_errors=True)
        (self.state_dir / "tmp").mkdir()

    async def _spawn(self) -> None:
        # The child inherits a socket that already listens: no port can be lost between choosing and binding it.
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, self.log_path.open("wb") as log:
            self._port = listener.getsockname()[1]
            self._process = await asyncio.create_subprocess_exec(
                *self._command(listener.fileno()),
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def _command(self, listen_fd: int) -> list[str]:
        # -P keeps the launcher's folder, whose modules have common names, out of the child's import path.
        return [
            *(self._python, "-P", str(_LAUNCHER)),
            *("--die-with-parent", str(os.getpid())),
            *("--listen-fd", str(listen_fd)),
            *("--status-file", str(self._status_file)),
            *("--base-model", str(self.model_dir)),
            *self._engine(),
            *("--checkpoints-base", str(self.state_dir / "checkpoints")),
            *("--database-url", f"sqlite:///{self.state_dir / 'tinker.db'}"),
        ]

    def _engine(self) -> list[str]:
        settings: dict[str, Any] = {
            "max_lora_adapters": _LORA_SLOTS,
            "max_lora_rank": self._max_lora_rank,
            "sequences_at_once": _SEQUENCES_AT_ONCE,
            "kept_mib": free_memory_mb() // _KEPT_SHARE,
        }
        if self._device is not None:
            settings["device"] = self._device
        if "OMP_NUM_THREADS" not in os.environ:
            # Threads that wait for each other spin: with all processors, sandboxes and trainer would wait for them.
            settings["threads"] = max(1, len(os.sched_getaffinity(0)) // 2)
        return ["--backend", TRANSFORMERS, "--backend-config", json.dumps(settings)]

    def _environment(self) -> dict[str, str]:
        return {
            **tool_environment(),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONUTF8": "1",
            "TMPDIR": str(self.state_dir / "tmp"),
        }

    @property
    def _status_file(self) -> Path:
        return self.state_dir / "tmp" / "status"

    async def _wait_until_ready(self, tell: Callable[[str], None]) -> None:
        assert self._process is not None
        pid, doing, worked_sec, moved = self._process.pid, "", 0.0, time.monotonic()
        while True:
            with contextlib.suppress(OSError, ValueError):  # the file is not there yet, or is being written
                number, _, now = self._status_file.read_text(encoding="utf-8").partition(" ")
                if now == READY and await self._answers():
                    return
                if now != doing:
                    pid, doing, moved = int(number), now, time.monotonic()
                    tell(doing)
            stat = read_stat(pid)
            if stat is not None and stat.cpu_sec != worked_sec:
                worked_sec, moved = stat.cpu_sec, time.monotonic()
            if self._process.returncode is not None:
                raise self._error(f"ended with exit code {self._process.returncode} before it was ready")
            if time.monotonic() - moved > self._stall_timeout_sec:
                place = f"while {doing}" if doing else "at its start"
                raise self._error(
                    f"made no progress for {self._stall_timeout_sec:g} s, {place}: see whether the machine has memory "
                    "and disk space left, then run the same command again (train's --server-timeout-sec waits longer)"
                )
            await asyncio.sleep(_POLL_SEC)

    async def _answers(self) -> bool:
        assert self._port is not None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        try:
            writer.write(b"GET /api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    def _error(self, what: str) -> TrainingServerError:
        tail = ""
        with contextlib.suppress(OSError):
            tail = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return TrainingServerError(f"the training server for {self.model_dir} {what}. End of {self.log_path}:\n{tail}")


def last_start() -> LastStart | None:
    """Return the last successful start of a server by this user's cache; None if there was none."""
    with contextlib.suppress(TypeError):
        return LastStart(**object_or_empty(cache_dir() / _LAST_START))
    return None


def _note_start(start: LastStart) -> None:
    with contextlib.suppress(OSError):  # nothing but a hint is lost
        replace_text(cache_dir() / _LAST_START, json.dumps(asdict(start)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


async def _end_process_group(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_SEC)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    with contextlib.suppress(TimeoutError):  # a zombie stays in the group until PID 1 reaps it, if it ever does
        async with asyncio.timeout(_REAP_SEC):
            while _group_exists(process.pid):  # noqa: ASYNC110 - the kernel has no event for an empty process group
                await asyncio.sleep(0.01)


def export_adapter(state_dir: Path, sampler_path: str, out_dir: Path) -> None:
    """Write a checkpoint's adapter in PEFT's format: ``adapter_config.json`` and ``adapter_model.safetensors``.

    No server needs to run.

    Args:
        state_dir: The ``state_dir`` of the server that saved it.
        sampler_path: ``tinker://MODEL/NAME`` or ``tinker://MODEL/sampler_weights/NAME``, as the server named it.
        out_dir: The folder to write to; made if missing.

    Raises:
        UsageError: There is no such checkpoint.
    """
    model, _, name = sampler_path.removeprefix("tinker://").partition("/")
    archive = state_dir / "checkpoints" / model / "sampler_weights" / f"{Path(name).name}.tar.gz"
    if not archive.is_file():
        raise UsageError(f"{sampler_path} is no checkpoint that the server in {state_dir} saved for sampling")
    out_dir.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            if member.isfile():
                packed.extract(member, out_dir, filter="data")


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
