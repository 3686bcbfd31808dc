"""A live page of runs: a server for this machine that reads the runs' folders again at each request.

It listens on loopback, answers GET only, and only requests whose ``Host`` is this machine, so that a foreign page whose
name resolves to loopback (DNS rebinding) can read nothing. It serves only files of the runs' transcripts, by name.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, override
from urllib.parse import parse_qs, unquote, urlsplit

from harbor_gym._runtime.files import open_regular
from harbor_gym.errors import UsageError
from harbor_gym.report.catalog import Catalog, is_run
from harbor_gym.report.metrics import distinct_names
from harbor_gym.report.page import MAX_RUNS, head_of, render, require_shown_runs, run_curves
from harbor_gym.report.summaries import contains, read_episode, summarize_episode

DEFAULT_PORT = 8765
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_KINDS = {".json": "application/json", ".cast": "application/x-asciicast"}
_READ_SEC = 0.3
"""Longest reading or searching of transcripts for one answer, in seconds; the page asks again for the rest of a large
run's."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A transcript that was read."""

    changed: int
    """When the file was written, in nanoseconds."""

    read: int
    """Its number in the order of reading."""

    summary: dict[str, Any]


@dataclass
class _Run:
    """One run's folder, with cached summaries."""

    folder: Path
    known: dict[Path, _Known] = field(default_factory=dict[Path, _Known])
    reads: int = 0
    removals: int = 0
    unread: int = 0
    """Transcripts that :meth:`read` has left for its next call."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def transcripts(self) -> Path:
        return self.folder / "transcripts"

    def read(self) -> None:
        """Read transcripts that are new or have changed, for :data:`_READ_SEC` at most, but one at least."""
        with self.lock:
            found = dict(_transcripts(self.transcripts))
            reads, until = self.reads, time.monotonic() + _READ_SEC
            if gone := self.known.keys() - found.keys():
                self.known = {path: known for path, known in self.known.items() if path not in gone}
                self.removals += 1
            self.unread = 0
            for path, changed in found.items():
                if (known := self.known.get(path)) is not None and known.changed == changed:
                    continue
                if self.reads > reads and time.monotonic() > until:
                    self.unread += 1
                elif (episode := read_episode(path, self.folder, with_cast=False)) is not None:
                    self.reads += 1
                    self.known[path] = _Known(changed, self.reads, summarize_episode(episode))

    def summaries(self, *, after: int = 0) -> list[dict[str, Any]]:
        """Return the summaries of the transcripts that were read, without the first ``after``, by place."""
        with self.lock:
            found = [known.summary for known in self.known.values() if known.read > after]
        return sorted(found, key=lambda item: (item["split"] == "test", item["split"], item["batch"], item["name"]))

    def transcript_of(self, name: str) -> Path | None:
        """Return an episode's transcript by the episode's name; None if there is no such episode."""
        path = self.transcripts / f"{name}.json"
        with self.lock:
            return path if path in self.known else None

    def content_of(self, name: str, suffix: str) -> bytes | None:
        """Return the content of an episode's file; None if there is no such episode, or no regular file."""
        path = self.transcript_of(name)
        with contextlib.suppress(OSError):
            if path is not None:
                with open_regular(path.with_suffix(suffix), self.transcripts) as file:
                    return file.read()
        return None

    def search(self, text: str, *, after: int) -> dict[str, Any]:
        """Search the episodes in the order in which they were read, for :data:`_READ_SEC` at most, but one at least.

        Args:
            text: What to look for.
            after: The number of the last episode that was searched before; 0 begins.

        Returns:
            ``searched``, whether each episode contains the text, by its name; ``after`` for the next call, and how many
            episodes are ``left`` for it. An episode that has changed since is searched again.
        """
        with self.lock:
            waiting = sorted((known.read, path) for path, known in self.known.items() if known.read > after)
        until = time.monotonic() + _READ_SEC
        searched: dict[str, bool] = {}
        for read, path in waiting:
            if (episode := read_episode(path, self.folder, with_cast=False)) is not None:
                searched[episode["name"]] = contains(episode, text)
            after = read
            if time.monotonic() > until:
                break
        return {"searched": searched, "after": after, "left": sum(read > after for read, _ in waiting)}


def _transcripts(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the transcripts in a folder and when each was written, in nanoseconds. Links are not followed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _transcripts(folder / entry.name)
            elif entry.name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError):
                    yield folder / entry.name, entry.stat(follow_symlinks=False).st_mtime_ns


class _Shown:
    """What the server shows: the given runs, or those of a folder, each by its address."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.catalog = Catalog(folders[0]) if len(folders) == 1 and not is_run(folders[0]) else None
        self._runs = [] if self.catalog else [_Run(folder) for folder in folders]
        self._opened: dict[Path, _Run] = {}

    def runs(self, names: str | None) -> list[_Run]:
        """Return the runs of an address: names of the list with ``|`` between, or None for the given runs."""
        if self.catalog is None or names is None:
            return self._runs
        folders = [folder for name in names.split("|") if (folder := self.catalog.folder_of(name)) is not None]
        return [self._opened.setdefault(folder, _Run(folder)) for folder in folders[:MAX_RUNS]]


class Viewer:
    """Serve the live page. Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Args:
        run_dirs: The folder of one run, or of several to compare; finished or not. A single folder that is no run is
            shown as the list of the runs and evaluations in it.
        port: Port on loopback; 0 takes a free one.

    Raises:
        UsageError: A folder is missing, there are too many, or the port is taken.
    """

    def __init__(self, run_dirs: Sequence[Path], *, port: int = DEFAULT_PORT) -> None:
        require_shown_runs(run_dirs)
        for folder in run_dirs:
            if not folder.is_dir():
                raise UsageError(f"{folder} is not a directory: name the folder of a run (--log-path of train)")
        shown = _Shown([folder.resolve() for folder in run_dirs])
        self.catalog = shown.catalog
        """The runs that the page lists; None if it shows given ones."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, shown))
        except OSError as exc:
            raise UsageError(f"port {port} can't be used: {exc.strerror}; choose another one (--port)") from exc
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="harbor-gym-viewer", daemon=True)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def start(self) -> None:
        """Start serving, in a thread."""
        self._thread.start()

    def wait(self) -> None:
        """Block until the server is stopped."""
        self._thread.join()

    def stop(self) -> None:
        """Stop answering, and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, shown: _Shown, *args: Any) -> None:
        self._shown = shown
        self._runs: Sequence[_Run] = ()
        super().__init__(*args)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal is the user's."""

    def do_GET(self) -> None:
        """Answer a request."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in _HOSTS and host not in _HOSTS:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is for this machine only")
            return
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        parts = [unquote(part) for part in address.path.strip("/").split("/") if part]
        answer = self._answer(parts, query)
        with contextlib.suppress(ConnectionError):  # the page went away meanwhile
            if answer is None:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such thing")
            else:
                self._send(HTTPStatus.OK, *answer)

    def _answer(self, parts: Sequence[str], query: Mapping[str, str]) -> tuple[str, bytes] | None:
        catalog = self._shown.catalog
        if catalog is not None and not parts:
            return "text/html; charset=utf-8", catalog.page().encode()
        if catalog is not None and parts[0] == "view" and len(parts) > 1:
            self._runs, parts = self._shown.runs(parts[1]), parts[2:]
            if not self._runs:
                return None
        else:
            self._runs = self._shown.runs(None)
        return self._of_run(parts, query) if parts else self._page()

    def _page(self) -> tuple[str, bytes]:
        folders = [run.folder for run in self._runs]
        names = distinct_names(folders)
        for run in self._runs:
            run.read()
        heads = [
            head_of(run.folder, name, run.summaries(), place=place)
            for place, (run, name) in enumerate(zip(self._runs, names, strict=True))
        ]
        runs = [
            {"name": name, "files": f"files/{number}", "place": str(run.folder), "unread": run.unread}
            for number, (name, run) in enumerate(zip(names, self._runs, strict=True))
        ]
        page = render(data={"live": True, "runs": runs}, heads=heads, curves=run_curves(folders), is_live=True)
        return "text/html; charset=utf-8", page.encode()

    def _of_run(self, parts: Sequence[str], query: Mapping[str, str]) -> tuple[str, bytes] | None:
        match parts:
            case ["api", "runs", number, what] if (run := self._run(number)) and what in _ANSWERS:
                return _ANSWERS[what](run, query)
            case ["favicon.ico"]:
                return "image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg"/>'
            case ["files", number, *name] if name and (run := self._run(number)):
                path = Path("/".join(name))
                kind = _KINDS.get(path.suffix)
                content = run.content_of(str(path.with_suffix("")), path.suffix) if kind else None
                return (kind, content) if kind and content is not None else None
            case _:
                return None

    def _run(self, number: str) -> _Run | None:
        return self._runs[int(number)] if number.isdecimal() and int(number) < len(self._runs) else None

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


type _Answer = Callable[[_Run, Mapping[str, str]], tuple[str, bytes] | None]


def _json(value: object) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


def _episodes(run: _Run, query: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the summaries that were read since the page's last request, or all where some are gone since."""
    run.read()
    removals, reads = run.removals, run.reads
    before, _, read = query.get("since", "").partition("-")
    is_whole = not (before == str(removals) and read.isdecimal())
    episodes = run.summaries(after=0 if is_whole else int(read))
    revision = f"{removals}-{reads}"
    return _json({"revision": revision, "whole": is_whole, "unread": run.unread, "episodes": episodes})


def _episode(run: _Run, query: Mapping[str, str]) -> tuple[str, bytes] | None:
    path = run.transcript_of(query.get("name", ""))
    episode = read_episode(path, run.folder) if path is not None else None
    return _json(episode) if episode is not None else None


def _search(run: _Run, query: Mapping[str, str]) -> tuple[str, bytes]:
    after = query.get("after", "")
    return _json(run.search(query.get("text", ""), after=int(after) if after.isdecimal() else 0))


_ANSWERS: dict[str, _Answer] = {"episodes": _episodes, "episode": _episode, "search": _search}
