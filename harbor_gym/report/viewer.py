"""A live page of runs: a server for this machine that reads the runs' folders again at each request.

It listens on loopback, answers GET only, and only requests whose ``Host`` is this machine, so that a foreign page whose
name resolves to loopback (DNS rebinding) can read nothing. It serves only files of the runs' transcripts, by name.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, override
from urllib.parse import parse_qs, unquote, urlsplit

from harbor_gym._runtime.files import open_regular
from harbor_gym.errors import UsageError
from harbor_gym.report.metrics import distinct_names
from harbor_gym.report.page import head_of, render, require_shown_runs, run_curves
from harbor_gym.report.summaries import contains, read_episode, summarize_episode

DEFAULT_PORT = 8765
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_KINDS = {".json": "application/json", ".cast": "application/x-asciicast"}
_STANDALONE = '<svg xmlns="http://www.w3.org/2000/svg" width="720" '
_STYLE = (
    "><style>text{font:11px sans-serif;fill:#5d6672}.label{font:600 13px sans-serif;fill:#1d232b}"
    ".grid{stroke:#d9dee4}.line{fill:none;stroke-width:2}.run0{stroke:#0072b2}.run1{stroke:#d55e00}"
    ".dot.run0{fill:#0072b2}.dot.run1{fill:#d55e00}</style>"
)


@dataclass
class _Run:
    """One run's folder, with cached summaries."""

    folder: Path
    summaries: dict[Path, tuple[int, dict[str, Any]]] = field(default_factory=dict[Path, tuple[int, dict[str, Any]]])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def transcripts(self) -> Path:
        return self.folder / "transcripts"

    def episodes(self) -> list[dict[str, Any]]:
        """Return a summary of every episode, by place; unchanged transcripts are not read again."""
        with self.lock:
            known: dict[Path, tuple[int, dict[str, Any]]] = {}
            for path in sorted(self.transcripts.rglob("*.json")):
                changed = path.lstat().st_mtime_ns
                before = self.summaries.get(path)
                if before is not None and before[0] == changed:
                    known[path] = before
                elif (episode := read_episode(path, self.folder)) is not None:
                    known[path] = changed, summarize_episode(episode)
            self.summaries = known
        found = [summary for _, summary in known.values()]
        return sorted(found, key=lambda item: (item["split"] == "test", item["split"], item["batch"], item["name"]))

    def revision(self) -> str:
        """Return a value that changes whenever an episode changes."""
        return f"{len(self.summaries)}-{max((changed for changed, _ in self.summaries.values()), default=0)}"

    def transcript_of(self, name: str) -> Path | None:
        """Return an episode's transcript by the episode's name; None if there is no such episode."""
        path = self.transcripts / f"{name}.json"
        with self.lock:
            return path if path in self.summaries else None

    def content_of(self, name: str, suffix: str) -> bytes | None:
        """Return the content of an episode's file; None if there is no such episode, or no regular file."""
        path = self.transcript_of(name)
        with contextlib.suppress(OSError):
            if path is not None:
                with open_regular(path.with_suffix(suffix), self.transcripts) as file:
                    return file.read()
        return None

    def search(self, text: str) -> list[str]:
        """Return the names of the episodes that contain a text."""
        with self.lock:
            paths = list(self.summaries)
        read = (read_episode(path, self.folder) for path in paths)
        return [episode["name"] for episode in read if episode is not None and contains(episode, text)]


class Viewer:
    """Serve the live page. Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Args:
        run_dirs: The folder of one run, or of two to compare; finished or not.
        port: Port on loopback; 0 takes a free one.

    Raises:
        UsageError: A folder is missing, there are more than two, or the port is taken.
    """

    def __init__(self, run_dirs: Sequence[Path], *, port: int = DEFAULT_PORT) -> None:
        require_shown_runs(run_dirs)
        for folder in run_dirs:
            if not folder.is_dir():
                raise UsageError(f"{folder} is not a directory: name the folder of a run (--log-path of train)")
        runs = [_Run(folder.resolve()) for folder in run_dirs]
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, runs))
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
    def __init__(self, runs: Sequence[_Run], *args: Any) -> None:
        self._runs = runs
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
        answer = self._page() if not parts else self._of_run(parts, query)
        with contextlib.suppress(ConnectionError):  # the page went away meanwhile
            if answer is None:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such thing")
            else:
                self._send(HTTPStatus.OK, *answer)

    def _page(self) -> tuple[str, bytes]:
        folders = [run.folder for run in self._runs]
        names = distinct_names(folders)
        heads = [head_of(run.folder, name, run.episodes()) for run, name in zip(self._runs, names, strict=True)]
        runs = [
            {"name": name, "files": f"files/{number}", "place": str(folder)}
            for number, (name, folder) in enumerate(zip(names, folders, strict=True))
        ]
        pictures = [f"api/curve?number={number}" for number in range(len(run_curves(folders)))]
        page = render(data={"live": True, "runs": runs}, heads=heads, pictures=pictures, is_live=True)
        return "text/html; charset=utf-8", page.encode()

    def _curve(self, number: str) -> tuple[str, bytes] | None:
        drawings = run_curves([run.folder for run in self._runs])
        if not number.isdecimal() or int(number) >= len(drawings):
            return None
        return "image/svg+xml", drawings[int(number)].replace("<svg ", _STANDALONE, 1).replace(">", _STYLE, 1).encode()

    def _of_run(self, parts: Sequence[str], query: Mapping[str, str]) -> tuple[str, bytes] | None:
        match parts:
            case ["api", "runs", number, what] if (run := self._run(number)) and what in _ANSWERS:
                return _ANSWERS[what](run, query)
            case ["api", "curve"]:
                return self._curve(query.get("number", ""))
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
    episodes = run.episodes()
    revision = run.revision()
    return _json({"revision": revision, "episodes": [] if query.get("since") == revision else episodes})


def _episode(run: _Run, query: Mapping[str, str]) -> tuple[str, bytes] | None:
    path = run.transcript_of(query.get("name", ""))
    episode = read_episode(path, run.folder) if path is not None else None
    return _json(episode) if episode is not None else None


def _search(run: _Run, query: Mapping[str, str]) -> tuple[str, bytes]:
    return _json(run.search(query.get("text", "")))


_ANSWERS: dict[str, _Answer] = {"episodes": _episodes, "episode": _episode, "search": _search}
