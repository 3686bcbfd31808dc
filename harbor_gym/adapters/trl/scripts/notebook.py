"""A notebook's kernel in the sandbox: a daemon that holds it, and the client that an adapter calls for each cell.

Runs in the sandbox with its Python (3.8 and later), the standard library and ipykernel, which brings jupyter_client.
``start DIRECTORY`` starts the daemon; ``run DIRECTORY TIMEOUT CODE`` executes a cell; ``restart DIRECTORY`` makes a
fresh kernel. CODE is base64 of UTF-8; empty waits for the cell that runs. The script prints the cell's output as text.
"""

import base64
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any

NO_KERNEL = 42
"""Exit status: this Python has no ipykernel, or the kernel does not start."""

_START_TIMEOUT_SEC = 60.0
_MAX_TEXT = 400_000
"""Characters of a cell's output that are kept: the beginning and the end of it."""
_POLL_SEC = 0.2
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_SHOWN_CHARACTERS = 2000
_PNG_SIZE = slice(16, 24)
"""Where a PNG has its width and height. Source: its specification, the chunk IHDR."""


class Notebook:
    """A kernel, and the output of its cells that nobody has read yet."""

    def __init__(self, directory: Path) -> None:
        from jupyter_client.manager import KernelManager  # pyright: ignore  # the sandbox's, not ours

        manager: Any = KernelManager(kernel_name="python3", transport="ipc", ip=str(directory / "kernel"))
        manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._manager = manager
        self._client: Any = None
        self._connect()

    def run(self, code: str, timeout_sec: float) -> str:
        """Execute a cell, or wait for the one that runs; return the new part of its output."""
        if self._running is not None and code:
            return self._read(0.0) + "\n[the last cell still runs: this one was not executed]"
        if code:
            self._parts, self._cut = [], 0
            self._running = self._client.execute(code, store_history=True, allow_stdin=False)
        elif self._running is None:
            return "[no cell runs]"
        return self._read(timeout_sec)

    def restart(self) -> str:
        """Replace the kernel by a fresh one."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=True)
        self._connect()
        return "[the kernel was restarted: every variable is gone]"

    def _connect(self) -> None:
        self._running: Any = None
        self._parts: list[str] = []
        self._cut = 0
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_START_TIMEOUT_SEC)

    def _read(self, timeout_sec: float) -> str:
        deadline = time.monotonic() + timeout_sec
        ending = ""
        while self._running is not None:
            try:
                self._take(self._client.get_iopub_msg(timeout=_POLL_SEC))
                continue
            except Empty:
                pass
            if not self._manager.is_alive():
                self._running = None
                ending = "\n[the kernel exited; restart_kernel starts a fresh one]"
            elif time.monotonic() >= deadline:
                ending = "\n[still running; run_cell with empty code waits for it, restart_kernel ends it]"
                break
        text, self._parts, self._cut = self._text(), [], 0
        return text + ending

    def _take(self, message: Any) -> None:
        if message["parent_header"].get("msg_id") != self._running:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            self._running = None
        elif kind == "stream":
            self._add(content["text"])
        elif kind in ("execute_result", "display_data", "update_display_data"):
            self._add(describe(content["data"]) + "\n")
        elif kind == "error":
            self._add("\n".join(content["traceback"]) + "\n")
        elif kind == "clear_output":
            self._parts, self._cut = [], 0

    def _add(self, text: str) -> None:
        self._parts.append(text)
        while sum(map(len, self._parts)) > _MAX_TEXT and len(self._parts) > 2:
            self._cut += len(self._parts.pop(len(self._parts) // 2))

    def _text(self) -> str:
        parts = self._parts
        if self._cut:
            middle = len(parts) // 2
            parts = [*parts[:middle], f"\n[... {self._cut} characters omitted ...]\n", *parts[middle:]]
        return as_text("".join(parts))


def as_text(output: str) -> str:
    """Return output without colours, and of overwritten lines (progress bars) their last text."""
    lines = _ESCAPES.sub("", output).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in lines).rstrip("\n")


def describe(data: Any) -> str:
    """Return a cell's displayed data as text: an image as its kind, its size, and the text that comes with it."""
    text = data.get("text/plain", "")
    for kind, content in data.items():
        if kind.startswith("image/"):
            return f"[{kind}{_size(kind, content)}] {text}".rstrip()
    return text or "[{}]".format(", ".join(data))


def _size(kind: str, content: str) -> str:
    if kind == "image/svg+xml":
        return f", {len(content)} characters"
    data = base64.b64decode(content)
    if kind == "image/png" and len(data) >= _PNG_SIZE.stop:
        return ", {}x{} pixels, {} bytes".format(*struct.unpack(">II", data[_PNG_SIZE]), len(data))
    return f", {len(data)} bytes"


def serve(directory: Path) -> None:
    """Be the daemon: one request a connection, a line of JSON each way."""
    notebook = Notebook(directory)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "socket.new"))
    listener.listen()
    (directory / "socket.new").rename(directory / "socket")
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            request = json.loads(connection.makefile("rb").readline())
            answer = _answer(notebook, request)
            connection.sendall(json.dumps(answer).encode() + b"\n")


def _answer(notebook: Notebook, request: Any) -> str:
    try:
        if request["do"] == "restart":
            return notebook.restart()
        return notebook.run(request["code"], request["timeout"])
    except Exception as error:  # a kernel that does not answer: the policy may restart it
        return f"[the kernel failed: {type(error).__name__}: {error}]"


def start(directory: Path) -> int:
    """Start the daemon and wait for its kernel; print why there is none."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = directory / "log"
    command = [sys.executable, str(Path(__file__).resolve()), "serve", str(directory)]
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, close_fds=True
        )
    deadline = time.monotonic() + _START_TIMEOUT_SEC
    while not (directory / "socket").exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            daemon.kill()
            _write(log.read_text(errors="replace", encoding="utf-8")[-_SHOWN_CHARACTERS:])
            return NO_KERNEL
        time.sleep(0.05)
    return 0


def ask(directory: Path, request: Any) -> int:
    """Print the daemon's answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(directory / "socket"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline()
        except OSError as error:
            _write(f"[the notebook's kernel is gone: {error}]")
            return 1
    if not line:
        _write("[the notebook's kernel is gone]")
        return 1
    _write(json.loads(line))
    return 0


def _write(text: str) -> None:
    # As bytes: the sandbox's locale may not be UTF-8.
    sys.stdout.buffer.write(text.encode(errors="replace"))


def main(arguments: Any) -> int:
    """Run the command line."""
    do, directory = arguments[0], Path(arguments[1])
    if do == "serve":
        serve(directory)
    if do == "start":
        return start(directory)
    if do == "restart":
        return ask(directory, {"do": "restart"})
    code = base64.b64decode(arguments[3]).decode()
    return ask(directory, {"do": "run", "timeout": float(arguments[2]), "code": code})


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
