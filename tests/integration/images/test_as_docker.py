"""Images of ``local`` equal Docker's of the same Dockerfile: files, configuration, first command."""

import hashlib
import io
import json
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from harbor_gym.sandboxes.image_settings import settings_of
from harbor_gym.sandboxes.images import build
from harbor_gym.sandboxes.images.build import Image, ImageSource, build_image
from harbor_gym.sandboxes.images.docker_images import MADE_LABEL
from harbor_gym.sandboxes.tools import contained, run_tool
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.docker_of_today import of_today, record
from tests.helpers.sandboxes.dockerfile_forms import FORMS
from tests.helpers.sandboxes.dockerfiles import BASE, CONFIGS, FILES, PARTS, WHOLES, Recipe, configured
from tests.helpers.sandboxes.local import make_sandbox, output, running

pytestmark = [pytest.mark.docker, pytest.mark.local, pytest.mark.slow]

_TREES = ("dev", "proc", "sys")
_LEFT_OUT = (*_TREES, ".dockerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab", "run/.containerenv")
"""Files of a container runtime, not of the image."""

_CAPABILITY = "security.capability"
_DAY = re.compile(rb"(?m)^([^:\n]*:[^:\n]*:)\d+")
"""The day of a password's last change, in /etc/shadow."""

_OF_THE_BASE = ("usr/bin", "usr/lib", "usr/sbin", "usr/share", "var/lib/dpkg")
"""Most of a base's files: one is compared where a Dockerfile names a file in it."""

_TAR = ("-c", "--numeric-owner", "--sort=name", "--xattrs", f"--xattrs-include={_CAPABILITY}")

_COPIED_APT = re.compile(
    r"/tmp/\d+/(sources\.list|keyrings/.*|(apt\.conf|auth\.conf|preferences|sources\.list|trusted\.gpg)\.d/.*)"
)
"""What two forms copy of the base's /etc/apt: which files are there depends on the base's release."""

_LABELS = ("io.buildah.version", MADE_LABEL)
_OF_TODAY = 28
"""The first Docker that reads every form by itself; for an older one there is a record."""

_SETTINGS = (
    "User",
    "Env",
    "Entrypoint",
    "Cmd",
    "WorkingDir",
    "Volumes",
    "StopSignal",
    "Shell",
    "Healthcheck",
    "OnBuild",
    "ExposedPorts",
)

DIFFERENCES = {
    "/c/packed-owned/inside": "a directory that an archive only implies is --chown's here, and root's in Docker",
    "/c/packed-owned/inside/file": "it is --chown's in Docker 28, and the archive's here and in Docker before",
    "/c/nodes-from/fifo": "Docker copies no FIFO from a stage",
    "/c/nodes-from/null": "Docker makes an empty file of a device of a stage",
    **dict.fromkeys(
        (
            *("/tmp/.wh.gone", "/tmp/v/.wh..wh..opq", "/tmp/w/.wh.d", "/tmp/w/.wh.y", "/.wh.etc", "/.wh..wh..opq"),
            *("/.wh.none", "/usr/.wh.bin", "/usr/share/.wh..wh..opq", "/.wh.opt", "/.wh..wh.plnk", "/tmp/.wh."),
            *("/tmp/.wh.l", "/tmp/.wh.f", "/tmp/.wh.u", "/tmp/.wh.u/v", "/tmp/a/.wh.bin", "/tmp/a/.wh..wh..opq"),
            *("/tmp/a/sub/.wh.x", "/tmp/a/sub/.wh.x/y", "/tmp/b/.wh.bin", "/tmp/b/.wh..wh..opq"),
            *("/tmp/b/sub/.wh.x", "/tmp/b/sub/.wh.x/y", "/tmp/added/.wh.x", "/tmp/from/.wh.e", "/tmp/.wh.link"),
        ),
        "Docker's own store keeps such a name, and a registry does not",
    ),
    **dict.fromkeys(("/tmp/24", "/tmp/24/x"), "COPY --from follows a link that the middle of a pattern matches"),
    "/c/target": "COPY writes the file that a link leads to in Docker, and replaces the link here",
    "/c/to-file": "as above",
    "/c/temporary": "Docker leaves the empty directory that a mount needed",
    **dict.fromkeys(("/ctx", "/mnt/cc", "/mnt/cf", "/mnt/rw", "/var/cache/mine"), "as above"),
    "/var/cache/apt/archives/partial": "of the bases: apt gives it to its own user in the one that is made for Docker",
    "/var/lib/apt/lists/partial": "as above",
}
"""Path → why it differs."""


REFERENCE = (
    *("ADD", "ADD --chmod", "ADD --chown", "ADD --exclude", "ADD --link"),
    *("ADD --checksum", "ADD --keep-git-dir", "ADD --unpack", "ADD http"),
    *("ARG", "CMD", "COPY", "COPY --chmod", "COPY --chown", "COPY --exclude", "COPY --from", "COPY --link"),
    *("COPY --parents", "ENTRYPOINT", "ENV", "EXPOSE", "EXPOSE 80-82", "FROM", "FROM --platform", "HEALTHCHECK"),
    *("HEALTHCHECK --interval", "HEALTHCHECK --timeout", "HEALTHCHECK --start-period", "HEALTHCHECK --retries"),
    *("HEALTHCHECK --start-interval", "LABEL", "MAINTAINER", "ONBUILD", "RUN", "RUN --mount=type=bind"),
    *("RUN --mount=type=cache", "RUN --mount=type=tmpfs", "RUN --mount=type=secret", "RUN --mount=type=ssh"),
    *("RUN --network", "RUN --security", "RUN --device", "SHELL", "STOPSIGNAL", "USER", "VOLUME"),
    *("WORKDIR", "# syntax", "# escape", "# check"),
)
"""The instructions of Dockerfiles and their options. Source: docs.docker.com/reference/dockerfile."""

NOT_COMPARED = {
    "ADD --checksum": "it is for addresses alone",
    "ADD http": "each builder has a network of its own: `test_run_networks.py` adds from a server of this machine",
    "ADD --keep-git-dir": "buildah has no such option: the task is refused",
    "ADD --unpack": "as above",
    "COPY --parents": "as above",
    "RUN --security": "as above",
    "RUN --device": "as above",
    "EXPOSE 80-82": "a range is one entry of the configuration here and an entry a port in Docker; nothing reads it",
    "HEALTHCHECK --start-interval": "Docker 20.10, the oldest that tests run with, does not read it",
}
"""Instructions in no Dockerfile here → why."""


@pytest.fixture
def docker_images() -> Iterator[list[str]]:
    """Names of images that go at the end."""
    require_engine("local")
    require_engine("docker")
    names: list[str] = []
    yield names
    subprocess.run(["docker", "image", "rm", "--force", *names], capture_output=True, check=False)


def write_recipe(directory: Path, recipe: Recipe, *, for_docker: bool = False) -> Path:
    """Write the context of a recipe with its Dockerfile."""
    write_context(directory, configured(recipe, for_docker=for_docker), recipe.files)
    for name, target in recipe.links.items():
        (directory / name).symlink_to(target)
    for name, mode in recipe.modes.items():
        (directory / name).chmod(mode)
    return directory


def write_context(directory: Path, text: str, files: dict[str, str]) -> Path:
    directory.mkdir(parents=True)
    (directory / "Dockerfile").write_text(text, encoding="utf-8")
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".tar"):
            _write_archive(path, content.encode())
        else:
            path.write_text(content)
    if files is FILES:
        (directory / "links").mkdir()
        (directory / "links" / "to").symlink_to("../one")
        (directory / ".dockerignore").write_text("**/*.secret\n")
    return directory


def _write_archive(path: Path, content: bytes) -> None:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("inside/file")
        member.size, member.uid, member.gid, member.mode = len(content), 197609, 33, 0o640
        archive.addfile(member, io.BytesIO(content))


async def docker_version() -> int:
    _, version = await run_tool("docker", "version", "--format", "{{.Server.Version}}")
    return int(version.partition(".")[0])


async def docker_build(context: Path, name: str) -> dict[str, Any]:
    """Build with Docker; return the image as Docker shows it."""
    code, printed = await run_tool(
        "docker", "build", "--quiet", "--tag", name, str(context), environment={"DOCKER_BUILDKIT": "1"}
    )
    assert code == 0, printed
    _, shown = await run_tool("docker", "image", "inspect", name)
    return json.loads(shown)[0]


def untouched(text: str) -> list[str]:
    """Return the directories of a base in which a Dockerfile names no file."""
    return [path for path in _OF_THE_BASE if f" /{path}/" not in text]


def packing(left_out: Sequence[str]) -> list[str]:
    """Return tar's arguments."""
    return [*_TAR, *(f"--exclude=./{path}/*" for path in (*_TREES, *left_out))]


def docker_files(image: dict[str, Any], folder: Path, left_out: Sequence[str]) -> dict[str, Any]:
    """List the files of an image's layers; where Docker makes more of them or hides them, those of a container."""
    driver = image.get("GraphDriver") or {}
    if driver.get("Name") == "overlay2" and not image["Config"].get("Volumes"):
        layers = [driver["Data"]["UpperDir"], *driver["Data"].get("LowerDir", "").split(":")]
        return merged_files([Path(layer) for layer in layers if layer], folder, left_out)
    # Without a log: the daemon would write the archive there as JSON, which takes most of this test's time.
    options = ("--rm", "--network", "none", "--log-driver", "none", "--user", "0", "--entrypoint", "tar")
    words = ("docker", "run", *options, image["Id"], *packing(left_out), "-C", "/", ".")
    done = subprocess.run(words, capture_output=True, check=False)
    # 1: on a busy machine Docker still changes a directory while tar reads it. What can't be read is 2.
    assert done.returncode in (0, 1), done.stderr
    return listed(done.stdout)


def local_files(image: Image, folder: Path, left_out: Sequence[str]) -> dict[str, Any]:
    """List the files of an image's layers, and the WORKDIR and VOLUMEs, which a sandbox makes when it starts."""
    found = merged_files(image.directories, folder, left_out)
    for path in map(PurePosixPath, (image.workdir, *image.volumes)):
        for directory in (path, *path.parents):
            found.setdefault(str(directory), ["dir", 0o755, 0, 0])
    return found


def merged_files(layers: Sequence[Path], folder: Path, left_out: Sequence[str]) -> dict[str, Any]:
    """List the files of directories that lie one over the other, the topmost first."""
    (folder / "merged").mkdir(parents=True)
    for number, layer in enumerate(layers):
        (folder / str(number)).symlink_to(layer)
    lowers = ":".join(str(number) for number in range(len(layers)))
    tar = shlex.join(["tar", *packing(left_out), "-C", "merged", "."])
    mount = f"mount -t overlay overlay -o lowerdir={lowers} merged"
    if len(layers) == 1:
        mount = "mount --bind 0 merged"  # an overlay has two lower directories or more
    done = subprocess.run(
        [*contained(), "sh", "-c", f"cd {folder} && {mount} && {tar}"], capture_output=True, check=True
    )
    return listed(done.stdout)


def listed(archive: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"/": None}
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            name = member.name.removeprefix("./").strip("/")
            if name in ("", ".") or name.startswith(_LEFT_OUT):
                continue
            found[f"/{name}"] = _shown(members, member)
    return found


def _shown(members: tarfile.TarFile, member: tarfile.TarInfo) -> list[Any]:
    owner = [member.mode, member.uid, member.gid]
    if member.isdir():
        return ["dir", *owner]
    if member.issym():
        return ["link", member.linkname]
    if member.isfile() or member.islnk():
        # Which of several names of one file comes first is the archive's choice.
        content = members.extractfile(member)
        assert content is not None
        capability = member.pax_headers.get(f"SCHILY.xattr.{_CAPABILITY}")
        text = content.read()
        if PurePosixPath(member.name).name.startswith("shadow"):
            text = _DAY.sub(rb"\1", text)  # one of the two images may have been built yesterday
        return ["file", *owner, hashlib.sha256(text).hexdigest(), capability]
    return [member.type.decode(), *owner]


def settings(config: dict[str, Any]) -> dict[str, Any]:
    found = {name: config.get(name) or None for name in _SETTINGS}
    found["Labels"] = {key: text for key, text in (config.get("Labels") or {}).items() if not key.startswith(_LABELS)}
    found["Env"] = sorted(found["Env"] or ())  # its order means nothing
    if found["WorkingDir"] == "/":
        found["WorkingDir"] = None
    return found


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the configuration of each image that buildah builds, as buildah shows it; the cache gives none."""
    shown: list[dict[str, Any]] = []

    def noting(config: dict[str, Any]) -> dict[str, Any]:
        shown.append(config)
        return settings_of(config)

    def lacking(digest: str) -> None: ...

    monkeypatch.setattr(build, "settings_of", noting)
    monkeypatch.setattr(build, "load_image", lacking)
    return shown


_base_files: dict[tuple[str, ...], dict[str, Any]] = {}


async def base_files(folder: Path, left_out: list[str]) -> dict[str, Any]:
    """List the files of the base, without those below some directories."""
    key = tuple(left_out)
    if key not in _base_files:
        base = await build_image(ImageSource(write_context(folder / "base", f"FROM {BASE}\n", {})))
        _base_files[key] = local_files(base, folder / "of-base", left_out)
    return _base_files[key]


def changed(files: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return what is new, or has another owner or mode than in the base; what is gone from it is None."""
    new = {path: shown for path, shown in files.items() if shown and (path not in base or shown[:4] != base[path][:4])}
    return {**dict.fromkeys(base.keys() - files.keys()), **new}


def of_any_base(files: dict[str, Any], base: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return files as on any release of the base image: the content of its own files, which a form copies, is ours."""
    known = {shown[4] for shown in base.values() if shown and shown[0] == "file"} - {hashlib.sha256().hexdigest()}

    def is_of_base(path: str) -> bool:
        own = ours.get(path)
        return bool(own) and own[0] == "file" and own[4] in known

    return {
        path: [*shown[:4], ours[path][4], *shown[5:]] if shown and shown[0] == "file" and is_of_base(path) else shown
        for path, shown in files.items()
        if not _COPIED_APT.fullmatch(path)
    }


def differences(local: dict[str, Any], docker: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = {path: (local.get(path), docker.get(path)) for path in sorted(local.keys() | docker.keys())}
    return {path: pair for path, pair in both.items() if pair[0] != pair[1] and path not in DIFFERENCES}


async def compare(context: Path, twin: Path, name: str, folder: Path, configs: list[dict[str, Any]]) -> None:
    docker = await docker_build(twin, name)
    image = await build_image(ImageSource(context))
    local = {**configs[0], "Volumes": {volume: {} for volume in image.volumes}}
    assert differences(settings(local), settings(docker["Config"])) == {}
    left_out = untouched((context / "Dockerfile").read_text(encoding="utf-8"))
    ours = local_files(image, folder / "local", left_out)
    assert differences(ours, docker_files(docker, folder / "docker", left_out)) == {}


def test_each_instruction_and_option_is_in_a_dockerfile_or_has_a_reason() -> None:
    lines = [line for recipe in (*WHOLES, *CONFIGS.values()) for line in (recipe.directives + recipe.text).splitlines()]

    def is_there(wanted: str) -> bool:
        name, _, option = wanted.partition(" ")
        return any(line.partition(" ")[0].upper() == name and option in line for line in lines)

    assert {wanted for wanted in REFERENCE if not is_there(wanted)} == NOT_COMPARED.keys()
    assert len(PARTS) + len(CONFIGS) >= 60
    compared = {path for whole in WHOLES for path in _OF_THE_BASE if path not in untouched(whole.text)}
    assert compared == {"usr/bin", "usr/share", "var/lib/dpkg"}


async def compare_recipe(
    recipe: Recipe, name: str, folder: Path, configs: list[dict[str, Any]], *, for_docker: bool
) -> None:
    context = write_recipe(folder / "environment", recipe)
    twin = write_recipe(folder / "twin", recipe, for_docker=for_docker)
    await compare(context, twin, name, folder, configs)


@pytest.mark.parametrize("number", range(len(WHOLES)))
@pytest.mark.usefixtures("nothing_left")
async def test_a_dockerfile_of_many_parts_gives_the_files_that_docker_gives(
    number: int, tmp_path: Path, docker_images: list[str], configs: list[dict[str, Any]]
) -> None:
    context = write_context(tmp_path / "environment", WHOLES[number].text, WHOLES[number].files)
    docker_images.append(f"harbor-gym-test/whole-{number}")
    await compare(context, context, docker_images[0], tmp_path, configs)


@pytest.mark.parametrize("about", CONFIGS)
@pytest.mark.usefixtures("nothing_left")
async def test_an_image_has_dockers_files_and_configuration(
    about: str, tmp_path: Path, docker_images: list[str], configs: list[dict[str, Any]]
) -> None:
    docker_images.append(f"harbor-gym-test/{list(CONFIGS).index(about)}")
    await compare_recipe(CONFIGS[about], docker_images[0], tmp_path, configs, for_docker=True)


@pytest.mark.parametrize("about", FORMS)
@pytest.mark.usefixtures("nothing_left")
async def test_a_form_is_read_as_docker_of_today_reads_it(
    about: str, tmp_path: Path, docker_images: list[str], configs: list[dict[str, Any]]
) -> None:
    """Where the machine's Docker is older, with what one of today made: see ``docker_of_today.json``."""
    context = write_recipe(tmp_path / "environment", FORMS[about])
    left_out = untouched((context / "Dockerfile").read_text(encoding="utf-8"))
    image = await build_image(ImageSource(context))
    of_base = await base_files(tmp_path, left_out)
    ours = {
        "settings": settings({**configs[0], "Volumes": {volume: {} for volume in image.volumes}}),
        "files": changed(local_files(image, tmp_path / "local", left_out), of_base),
    }
    if await docker_version() >= _OF_TODAY:
        docker_images.append(f"harbor-gym-test/form-{list(FORMS).index(about)}")
        docker = await docker_build(context, docker_images[0])
        made = docker_files(docker, tmp_path / "docker", left_out)
        record(about, {"settings": settings(docker["Config"]), "files": changed(made, of_base)})
    theirs = of_today(about)
    assert differences(ours["settings"], theirs["settings"]) == {}
    assert (
        differences(*(of_any_base(files, of_base, ours["files"]) for files in (ours["files"], theirs["files"]))) == {}
    )


@pytest.mark.usefixtures("nothing_left")
async def test_the_shell_of_a_base_image_counts_as_in_docker(
    tmp_path: Path, docker_images: list[str], configs: list[dict[str, Any]]
) -> None:
    """An image on an image: RUN, CMD, ENTRYPOINT and HEALTHCHECK as text."""
    base, name = "harbor-gym-test/shelled", "harbor-gym-test/on-shelled"
    docker_images += [base, name]
    shelled = f'FROM {BASE}\nSHELL ["/bin/bash", "-o", "pipefail", "-c"]\n'
    await docker_build(write_context(tmp_path / "base", shelled, {}), base)
    run = "RUN echo $0 >/zero; set -o | grep pipefail >/options"
    text = f"FROM {base}\n{run}\nCMD echo x\nENTRYPOINT exec sleep 1\nHEALTHCHECK CMD true\n"
    context = write_context(tmp_path / "environment", text, {})
    await compare(context, context, name, tmp_path, configs)


ON_BUILD = """\
SHELL ["/bin/bash", "-c"]
ONBUILD RUN echo $0 >/zero
ONBUILD ARG V=x
ONBUILD ENV W=$V
ONBUILD WORKDIR /wd/${V:+$W}
ONBUILD COPY --chmod=%s one two /o/
ONBUILD VOLUME /data/$V
ONBUILD RUN mkdir -p /data/x && touch /data/x/y
ONBUILD USER nobody
ONBUILD WORKDIR /wd/u
ONBUILD WORKDIR v
ONBUILD RUN id >/tmp/who; pwd >>/tmp/who
ONBUILD CMD echo a
ONBUILD LABEL a=b
"""


async def test_onbuild_of_a_base_image_is_executed_as_in_docker(
    tmp_path: Path, docker_images: list[str], configs: list[dict[str, Any]]
) -> None:
    base, name = "harbor-gym-test/triggering", "harbor-gym-test/triggered"
    docker_images += [base, name]
    mode = "755" if await docker_version() < _OF_TODAY else "700"
    await docker_build(write_context(tmp_path / "base", f"FROM {BASE}\n{ON_BUILD % mode}", {}), base)
    text = f"FROM {base} AS a\nFROM a\nRUN echo $V $W >/tmp/said\nCOPY --from={base} /etc/debian_version .\n"
    context = write_context(tmp_path / "environment", text, {"one": "1", "two": "2"})
    await compare(context, context, name, tmp_path, configs)


FIRST = "id; pwd; env | grep -Ev '^(HOSTNAME|SHLVL|_|OLDPWD|TERM)=' | sort; stat -c '%U:%G %a' ."


@pytest.mark.parametrize("about", ["USER and WORKDIR", "a WORKDIR that is USER's", "ENV", "ENTRYPOINT as JSON"])
@pytest.mark.usefixtures("nothing_left")
async def test_the_first_command_sees_what_it_sees_in_docker(
    about: str, tmp_path: Path, docker_images: list[str]
) -> None:
    name = f"harbor-gym-test/first-{list(CONFIGS).index(about)}"
    docker_images.append(name)
    sandbox = make_sandbox(tmp_path, dockerfile=configured(CONFIGS[about]))
    await docker_build(tmp_path / "environment", name)
    code, container = await run_tool("docker", "run", "--detach", "--network", "none", name, "sleep", "infinity")
    assert code == 0, container
    try:
        code, seen = await run_tool("docker", "exec", container.strip(), "bash", "-c", FIRST)
    finally:
        await run_tool("docker", "rm", "--force", container.strip())
    assert code == 0, seen
    async with running(sandbox):
        assert await output(sandbox, FIRST) == seen.strip()
    shutil.rmtree(tmp_path / "environment")
