"""Ids above an ordinary user's range: said at the start, in one line, as the task's fault."""

import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.sandboxes.apptainer.sif.build import build_sif
from harbor_gym.sandboxes.images.build import ImageSource, build_image
from harbor_gym.sandboxes.tools import contained, run_tool
from tests.helpers.registries.image_registry import image_registry
from tests.helpers.rootless import run_rootless
from tests.helpers.tasks import BASE

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

_START = """
import asyncio, json, os, sys, zlib
from pathlib import Path
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import HarborGymError
from tests.helpers.tasks import write_task

async def main():
    sandbox, cases, files, registries = json.loads(sys.argv[1].replace("HOME", str(Path.home())))
    for name, content in files.items():
        Path.home().joinpath(name).write_bytes(zlib.decompress(bytes.fromhex(content)))
    Path.home().joinpath("registries.conf").write_text(registries)
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(Path.home() / "registries.conf")
    for number, (dockerfile, toml, options) in enumerate(cases):
        task = write_task(Path.home() / f"task-{number}", dockerfile=dockerfile, toml=toml)
        (task / "environment/one").write_text("1")
        try:
            async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task, sandbox=sandbox, **options)) as env:
                await env.reset()
                print("started")
        except HarborGymError as exc:
            print(f"{type(exc).__name__}: {exc}".replace("\\n", " | "))

asyncio.run(main())
"""
_LINES = {
    "COPY --chown=70000 one /one": "70000",
    "RUN touch /high && chown 197609 /high": "197609",
    "RUN tar -c --owner=197609 --numeric-owner etc/hostname | tar -x -C /srv": "197609",
    "RUN useradd -u 70000 worker\nUSER worker": "70000",
    "USER 100001\nRUN id": "100001",
    "USER 100001": "100001",
    "RUN echo crew:x:70000:nobody >>/etc/group\nUSER nobody": "70000",
    "RUN echo crew:x:70000:root >>/etc/group": "70000",
}
"""A Dockerfile's line → the id that the message names."""

_AGENTS = {
    '[agent]\nuser = "70000"\n': "70000",
    '[agent]\nuser = "1:70000"\n': "70000",
    '[agent]\nuser = "high"\n': "70001",
    '[agent]\nuser = "ofgroup"\n': "70002",
    '[agent]\nuser = "member"\n': "70003",
}
_ACCOUNTS = (
    "RUN printf '%s\\n' high:x:70001:0::/:/bin/sh ofgroup:x:1500:70002::/:/bin/sh member:x:1501:1501::/:/bin/sh "
    ">>/etc/passwd && echo crew:x:70003:member >>/etc/group"
)


def _archive(members: dict[str, bytes], *, owner: int = 0) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.uid, member.gid = len(content), owner, owner
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _image() -> bytes:
    """Return the archive of ``docker save`` of an image with a file of a high owner's."""
    layer = _archive({"bin/sh": b"x"}, owner=197609)
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}
    manifest = [{"Config": "config.json", "RepoTags": ["high:latest"], "Layers": ["layer.tar"]}]
    documents = {"config.json": config, "manifest.json": manifest}
    return _archive({"layer.tar": layer, **{name: json.dumps(text).encode() for name, text in documents.items()}})


type Case = tuple[str, str, dict[str, Any]]
"""A Dockerfile, tables of task.toml, and settings of the environment."""


async def _said(
    cases: dict[str, Case], registry: str = "", *, sandbox: str = "local", files: Mapping[str, bytes] | None = None
) -> dict[str, str]:
    """Start an episode of each task as an ordinary user; return each one's output."""
    contents = {"rootfs.tar": _archive({"bin/sh": b"x"}, owner=197609), "image.tar": _image(), **(files or {})}
    written = {name: zlib.compress(content).hex() for name, content in contents.items()}
    words = json.dumps([sandbox, list(cases.values()), written, registry])
    said = (await run_rootless("-c", _START, words)).stdout.splitlines()
    return dict(zip(cases, said, strict=True))


def _strange(said: dict[str, str], ids: dict[str, str]) -> dict[str, str]:
    """Return the lines that are no task error which names the id, the range's last one and a remedy."""

    def is_right(about: str, line: str) -> bool:
        return line.startswith("TaskError: ") and all(word in line for word in (ids[about], "6553", "--add-subuids"))

    return {about: line for about, line in said.items() if not is_right(about, line)}


async def test_an_id_above_the_users_range_is_the_tasks_fault_at_the_start() -> None:
    text = f"FROM {BASE}\n"
    cases: dict[str, Case] = {
        **{line: (f"{text}{line}\n", "", {}) for line in _LINES},
        **{toml: (f"{text}{_ACCOUNTS}\n", toml, {}) for toml in _AGENTS},
        "archive": (text, "", {"sandbox_options": {"image": "docker-archive:HOME/image.tar"}}),
        "rootfs": (text, "", {"sandbox_options": {"rootfs": "HOME/rootfs.tar"}}),
        "set-up": (text, "", {"setup_command": "touch /x && chown 197609 /x"}),
    }
    ids = {**dict.fromkeys(cases, "197609"), **_LINES, **_AGENTS}
    assert _strange(await _said(cases), ids) == {}


@pytest.mark.registry
async def test_an_id_of_a_registrys_image_above_the_users_range_is_the_tasks_fault_at_the_start(tmp_path: Path) -> None:
    with image_registry(tmp_path / "registry") as registry:
        (tmp_path / "image.tar").write_bytes(_image())
        name = f"{registry.address}/high:latest"
        push = f"buildah push --tls-verify=false $id {name}; buildah rmi $id"
        code, printed = await run_tool(
            *contained(), "sh", "-ec", f"id=$(buildah pull -q docker-archive:{tmp_path}/image.tar); {push}"
        )
        assert code == 0, printed
        cases: dict[str, Case] = {
            "pulled": (f"FROM {name}\n", "", {}),
            "named": (f"FROM {BASE}\n", f'[environment]\ndocker_image = "{name}"\n', {}),
        }
        conf = f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n'
        said = await _said(cases, conf)
    assert _strange(said, dict.fromkeys(cases, "197609")) == {}


@pytest.mark.apptainer
async def test_an_id_above_the_users_range_is_the_tasks_fault_at_the_start_of_an_apptainer_sandbox(
    tmp_path: Path,
) -> None:
    (tmp_path / "rootfs.tar").write_bytes(_archive({"bin/sh": b"x"}, owner=197609))
    await build_sif(await build_image(ImageSource(tmp_path, rootfs=tmp_path / "rootfs.tar")), tmp_path / "high.sif")
    text = f"FROM {BASE}\n"
    cases: dict[str, Case] = {
        "197609 of a SIF file": (text, '[environment]\ndocker_image = "HOME/high.sif"\n', {}),
        "197609 of a file": (f"{text}RUN touch /high && chown 197609 /high\n", "", {}),
        "100001 of USER": (f"{text}USER 100001\n", "", {}),
        "70000 of USER's group": (f"{text}RUN echo crew:x:70000:nobody >>/etc/group\nUSER nobody\n", "", {}),
        "70000 of root's group": (f"{text}RUN echo crew:x:70000:root >>/etc/group\n", "", {}),
        "70001 of the agent's account": (f"{text}{_ACCOUNTS}\n", '[agent]\nuser = "high"\n', {}),
        "70000 of the agent": (text, "[agent]\nuser = 70000\n", {}),
        "2000000000 of the set-up": (text, "", {"setup_command": "touch /x && chown 2000000000 /x"}),
    }
    files = {"high.sif": (tmp_path / "high.sif").read_bytes()}
    said = await _said(cases, sandbox="apptainer", files=files)
    assert _strange(said, {about: about.split()[0] for about in cases}) == {}
