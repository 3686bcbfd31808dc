"""A registry of images on this machine: Debian's docker-registry, with a password where the test needs one."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.patience import PATIENCE_SEC

USER, PASSWORD = "team", "not-a-secret"
_HTPASSWD = "team:$2b$04$OtJIoYkXFg2.iwqzX/kyaunfVE4SiDsCCJqiILWY7SMn4fb2iIJhu\n"
"""``PASSWORD`` as htpasswd(1) writes it with ``-B``."""

CREDENTIALS = {"APPTAINER_DOCKER_USERNAME": USER, "APPTAINER_DOCKER_PASSWORD": PASSWORD}
"""Variables by which Apptainer authenticates."""

UNREACHABLE = "registry.invalid"
"""An address that no name server knows. Source: RFC 6761."""

_LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class ImageRegistry:
    """A running registry."""

    address: str
    """``HOST:PORT``."""

    folder: Path
    process: subprocess.Popen[bytes]

    def requests(self, method: str) -> list[str]:
        """Return the paths of the answered requests of one method, in their order."""
        pattern = rf'"{method} (\S+) HTTP/1\.1" [23]\d\d '
        return re.findall(pattern, (self.folder / "log").read_text())

    def tags(self, name: str) -> set[str]:
        """Return the tags of an image that was pushed whole."""
        tags = self.folder / "data/docker/registry/v2/repositories" / name / "_manifests/tags"
        return {path.name for path in tags.iterdir()} if tags.is_dir() else set()

    @contextlib.contextmanager
    def stalled(self) -> Generator[None]:
        """Answer nothing as long as the block runs; connections stay open."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def in_place_of_docker_io(folder: Path, address: str) -> dict[str, str]:
    """Return the variables that make buildah take images of docker.io from another registry, without TLS."""
    path = folder / "registries.conf"
    path.write_text(f'[[registry]]\nprefix = "docker.io"\nlocation = "{address}"\ninsecure = true\n')
    return {"CONTAINERS_REGISTRIES_CONF": str(path)}


@contextlib.contextmanager
def image_registry(folder: Path, *, needs_password: bool = False) -> Generator[ImageRegistry]:
    """Run a registry on a free port of the loopback, with its data in ``folder``; it is killed at the end."""
    folder.mkdir()
    config = [
        "version: 0.1",
        "log: {accesslog: {disabled: false}, level: info}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}",
        "http: {addr: '127.0.0.1:0', secret: none}",
    ]
    if needs_password:
        (folder / "htpasswd").write_text(_HTPASSWD)
        config.append(f"auth: {{htpasswd: {{realm: test, path: {folder / 'htpasswd'}}}}}")
    (folder / "config.yml").write_text("\n".join(config))
    with (folder / "log").open("wb") as log:
        command = ["docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield ImageRegistry(_address(folder / "log", process), folder, process)
    finally:
        process.kill()
        process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_SEC
    while (found := _LISTENING.search(log.read_text(encoding="utf-8"))) is None:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.05)
    return found[1]
