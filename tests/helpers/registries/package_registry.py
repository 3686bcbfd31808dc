"""A local registry of packages that answers the HTTP requests of Harbor's own client."""

import contextlib
import io
import json
import tarfile
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, override
from urllib.parse import parse_qs, urlsplit

from harbor.publisher.packager import Packager


class PackageRegistry:
    """Tasks and datasets of one organisation. Filled by :meth:`add_task` and :meth:`add_dataset`.

    It answers as Harbor 0.24's client reads: tables of PostgREST, one remote procedure, one bucket.
    """

    def __init__(self, org: str) -> None:
        self.org = org
        self.asked: list[str] = []
        """Method and path of every request."""

        self._versions: dict[str, list[str]] = {}
        self._archives: dict[str, bytes] = {}
        self._datasets: dict[str, list[tuple[str, str]]] = {}

    def add_task(self, name: str, task_dir: Path) -> str:
        """Publish a directory as the task's newest version; return its digest."""
        digest, _ = Packager.compute_content_hash(task_dir)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(task_dir, arcname=".")
        self._archives[f"{self.org}/{name}/{digest}.tar.gz"] = packed.getvalue()
        self._versions.setdefault(name, []).append(digest)
        return f"sha256:{digest}"

    def add_dataset(self, name: str, tasks: dict[str, str]) -> None:
        """Publish a dataset: names of tasks, and their digests."""
        self._datasets[name] = [(task, digest.removeprefix("sha256:")) for task, digest in tasks.items()]

    @contextlib.contextmanager
    def served(self) -> Generator[str]:
        """Answer at an address of this machine as long as the block runs."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            @override
            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                registry.asked.append(f"{self.command} {urlsplit(self.path).path}")
                found = registry.answer(self.path, json.loads(body) if body else {})
                payload = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = _answer

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    def answer(self, target: str, body: dict[str, Any]) -> Any:
        """Return the answer to one request: rows, a row, or an archive."""
        parts = urlsplit(target)
        wanted = {key: values[0].removeprefix("eq.") for key, values in parse_qs(parts.query).items()}
        match parts.path.removeprefix("/").split("/", 3):
            case ["rest", "v1", "package"]:
                return self._packages(wanted["org.name"], wanted["name"])
            case ["rest", "v1", "rpc", "resolve_task_version"]:
                return self._version(body["p_org"], body["p_name"], body["p_ref"])
            case ["rest", "v1", "dataset_version_tag"]:
                return self._tagged(wanted["package.name"], wanted["tag"])
            case ["rest", "v1", "dataset_version_task"]:
                return [self._edge(name, digest) for name, digest in self._datasets[wanted["dataset_version_id"]]]
            case ["storage", "v1", "object", path]:
                return self._archives[path.removeprefix("packages/")]
            case _:
                return []

    def _packages(self, org: str, name: str) -> list[dict[str, Any]]:
        kinds = [kind for kind, known in (("task", self._versions), ("dataset", self._datasets)) if name in known]
        return [{"id": name, "type": kind, "visibility": "public", "org": {"name": org}} for kind in kinds]

    def _version(self, org: str, name: str, ref: str) -> dict[str, Any] | None:
        versions = self._versions[name]
        named = {"latest": len(versions), **{f"sha256:{digest}": i for i, digest in enumerate(versions, 1)}}
        revision = named.get(ref) or (int(ref) if ref.isdecimal() else 0)
        if not 1 <= revision <= len(versions):
            return None
        digest = versions[revision - 1]
        path = f"{org}/{name}/{digest}.tar.gz"
        return {"id": f"{name}-{revision}", "archive_path": path, "content_hash": digest, "revision": revision}

    def _tagged(self, name: str, tag: str) -> list[dict[str, Any]]:
        version = {"id": name, "content_hash": "0" * 64, "description": ""}
        return [{"dataset_version": version, "package": {"name": name}}] if tag == "latest" else []

    def _edge(self, name: str, digest: str) -> dict[str, Any]:
        package = {"name": name, "org": {"name": self.org}}
        return {"task_version_id": name, "task_version": {"content_hash": digest, "package": package}}
