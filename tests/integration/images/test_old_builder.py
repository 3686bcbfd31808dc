"""Dockerfiles that buildah 1.28 of Debian 12 would build otherwise than Docker: built right, or refused by name."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.bases import ensure_base_tar
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

_PLACES = (os.environ.get("HARBOR_GYM_OLD_BUILDAH", ""), "/usr/bin/buildah")
"""Where a distribution's own buildah may be; a newer one of ours goes before it on the PATH and replaces nothing."""
_CURRENT = (1, 39)

_BUILD = """
import asyncio, json, os, sys
from pathlib import Path
from harbor_gym.errors import HarborGymError
from harbor_gym.sandboxes.images.build import ImageSource, build_image

def text_of(image, name):
    found = next((layer / name for layer in image.directories if os.path.lexists(layer / name)), None)
    return None if found is None else [found.stat().st_uid, "" if found.is_dir() else found.read_text().strip()]

async def main():
    said = {}
    for folder, names in json.loads(sys.argv[1]).items():
        try:
            image = await build_image(ImageSource(Path(folder)))
            health = None if image.healthcheck is None else image.healthcheck.argv[-1]
            said[folder] = {"health": health, **{name: text_of(image, name) for name in names}}
        except HarborGymError as exc:
            said[folder] = f"{type(exc).__name__}: {exc}"
    print(json.dumps(said))

asyncio.run(main())
"""

_KINDS = """\
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
HEALTHCHECK CMD test -e /healthy
VOLUME /data
RUN source /etc/os-release && mkdir -p /data && echo $ID >/data/id && chown 1500 /data
COPY . /ctx
RUN nohup sleep 1000 >/dev/null 2>&1 &
RUN ps -e -o args= | grep -c '[s]leep 1000' >/left || true
RUN --mount=type=bind,source=one,target=/mnt/one cp /mnt/one /bound
USER nobody
WORKDIR /of/nobody
COPY one .
"""


_ON_BUILD = """\
ONBUILD RUN mkdir -p /on/run && echo "$0 $PWD" >/on/said
ONBUILD COPY one /on/
ONBUILD ENV PLACE=/on/env
ONBUILD VOLUME /on
"""
_AFTER = "RUN mkdir $PLACE && echo $(cat /on/said) >>/on/said\n"


@pytest.fixture
def old_buildah(tmp_path: Path) -> dict[str, str]:
    """Variables with which an old buildah is the one on the PATH, with a store and a cache of its own."""
    require_engine("local")
    for place in filter(os.path.exists, _PLACES):
        shown = subprocess.run([place, "--version"], capture_output=True, text=True, check=True).stdout
        if (found := re.search(r"version (\d+)\.(\d+)", shown)) and (int(found[1]), int(found[2])) < _CURRENT:
            break
    else:
        pytest.skip(
            "no buildah before 1.39 here: HARBOR_GYM_OLD_BUILDAH names one (apt-get download buildah on Debian 12)"
        )
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "buildah").symlink_to(place)
    store = tmp_path / "store"
    storage = f'[storage]\ndriver = "overlay"\nrunroot = "{store}/run"\ngraphroot = "{store}/graph"\n'
    (tmp_path / "storage.conf").write_text(storage)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"),
        "HARBOR_GYM_CACHE": str(tmp_path / "cache"),
    }


def _context(directory: Path, text: str, **files: str) -> Path:
    directory.mkdir()
    for name, content in {"Dockerfile": text, **files}.items():
        (directory / name.replace("__", ".")).write_text(content)
    return directory


async def test_an_old_builder_builds_as_docker_or_refuses_by_name(tmp_path: Path, old_buildah: dict[str, str]) -> None:
    base = await ensure_base_tar()
    bases = Path(old_buildah["HARBOR_GYM_CACHE"]) / "bases"
    bases.mkdir(parents=True)
    shutil.copy(base, bases)

    def run(*argv: str) -> str:
        done = subprocess.run(argv, env=old_buildah, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, ".ci/bases.py", BASE)
    made = "cd $0 && buildah bud --format docker --isolation chroot --pull-never -q -t localhost/$1 ."
    for name, lines in {
        "volumes": "FROM scratch\nVOLUME /data\n",
        "on-build": f"FROM localhost/harbor-gym-base:debian-bookworm-slim\n{_ON_BUILD}",
    }.items():
        place = _context(tmp_path / name, lines)
        run("unshare", "--mount", "--propagation", "private", "sh", "-c", made, str(place), name)
    text = f"FROM {BASE}\n{_KINDS}"
    ignored = {"__dockerignore": "b\n", "Dockerfile__dockerignore": "a\n", "a": "a", "b": "b"}
    first = _context(tmp_path / "first", text, one="1", **ignored)
    second = _context(tmp_path / "second", text, one="22", **ignored)
    stage = f"FROM {BASE} AS Parent\n{_ON_BUILD}FROM parent AS child\n{_AFTER}FROM child\nRUN echo x >>/on/said\n"
    in_stage = _context(tmp_path / "on-build-stage", stage, one="1")
    on_base = _context(tmp_path / "on-build-base", f"FROM localhost/on-build\n{_AFTER}", one="1")
    refused = {
        "volumes of a base": _context(tmp_path / "on-volumes", "FROM localhost/volumes\nRUN echo x >/data/x\n"),
    }
    documents = "RUN <<EOF\necho run >/run-said\nEOF\nCOPY --exclude=a* . /ctx/\nCOPY <<EOF /doc\nd\nEOF\n"
    own = _context(tmp_path / "own", f"FROM {BASE} AS a\nONBUILD VOLUME /d\n{documents}FROM a\n", a="a", b="b")
    names = ["data/id", "data", "ctx/a", "ctx/b", "left", "bound", "of/nobody"]
    wanted = {str(place): names for place in (first, second, *refused.values())}
    on_build = ["on/run", "on/said", "on/one", "on/env"]
    wanted |= {str(place): on_build for place in (in_stage, on_base)}
    wanted |= {str(own): ["run-said", "ctx/a", "ctx/b", "doc"]}
    said = json.loads(run(sys.executable, "-c", _BUILD, json.dumps(wanted)).splitlines()[-1])
    right = {
        "health": "test -e /healthy", "data/id": [0, "debian"], "data": [1500, ""], "ctx/a": None, "ctx/b": [0, "b"],
        "left": [0, "0"], "of/nobody": [65534, ""],
    }  # fmt: skip
    assert said[str(first)] == {**right, "bound": [0, "1"]}
    assert said[str(second)] == {**right, "bound": [0, "22"]}
    assert said[str(own)] == {
        "health": None, "run-said": [0, "run"], "ctx/a": None, "ctx/b": [0, "b"], "doc": [0, "d"],
    }  # fmt: skip
    twice = "/bin/sh /\n/bin/sh /"
    right = {"health": None, "on/run": [0, ""], "on/one": [0, "1"], "on/env": [0, ""]}
    assert said[str(on_base)] == {**right, "on/said": [0, twice]}
    assert said[str(in_stage)] == {**right, "on/said": [0, f"{twice}\nx"]}
    for about, place in refused.items():
        assert re.search(r"(?i)buildah.*(install|no such option).*--env docker", said[str(place)]), (about, said)
