"""Layers of images: copied once, shared, read as the image's own builder reads them; archives and root file systems."""

import asyncio
import contextlib
import os
import stat
import time
import uuid
from pathlib import Path

import pytest

from harbor_gym._runtime import cache
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.sandboxes.apptainer.sif.build import build_sif
from harbor_gym.sandboxes.images import build, layer_export, sources
from harbor_gym.sandboxes.images.build import Image, ImageSource, build_image
from harbor_gym.sandboxes.images.builder import build_argv, run_buildah, run_environment
from harbor_gym.sandboxes.images.context import Context
from harbor_gym.sandboxes.images.plan import planned
from harbor_gym.sandboxes.images.recipe import read
from harbor_gym.sandboxes.tools import contained, run_tool
from tests.helpers.bases import ensure_base_tar
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.local import make_sandbox, output, running

BASE = "debian:bookworm-slim"
MOUNTS = (
    "36 1 0:3 / /proc rw - proc proc rw\n"
    "40 1 0:9 / /store/overlay/x/merged rw,relatime - overlay overlay rw,lowerdir={lowers},upperdir=/u,workdir=/w\n"
)
LISTING = (
    r"cd {} && find . -mindepth 1 \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./logs "
    r"-o -path ./etc/hosts -o -path ./etc/hostname -o -path ./etc/resolv.conf \) -prune -o "
    r"\( -type d -printf '%p %M %U %G\n' -o -printf '%p %M %U %G %s %n %T@ %l\n' \) | LC_ALL=C sort | sed 's/[.]0* / /'"
)


def write_rootfs(path: Path) -> Path:
    """A root file system as far as its form goes."""
    for name in ("bin", "etc", "opt"):
        (path / name).mkdir(parents=True)
    (path / "bin" / "sh").write_text("#!/bin/no\n")
    (path / "opt" / "one").write_text("1")
    os.link(path / "opt" / "one", path / "opt" / "two")
    (path / "etc").chmod(0o750)
    (path / "etc" / "hosts").symlink_to("/etc/hostname")
    return path


# --- reading mounted layers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lowers", "expected"),
    [
        ("/store/overlay/l/A:/store/overlay/l/B", ["/store/overlay/l/A", "/store/overlay/l/B"]),
        ("l/A:l/B", ["/store/overlay/l/A", "/store/overlay/l/B"]),
        (r"/store/with\134:colon", []),
    ],
)
def test_the_layers_of_a_mounted_image_are_read_from_its_mount(lowers: str, expected: list[str]) -> None:
    mounts = MOUNTS.format(lowers=lowers)
    assert layer_export.lower_directories("/store/overlay/x/merged", mounts) == expected
    assert layer_export.lower_directories("/store/overlay/y/merged", mounts) == []


def test_layers_are_distinguished_only_where_the_kernel_writes_plain_ones(tmp_path: Path) -> None:
    assert layer_export.writes_plain_layers(tmp_path)
    (tmp_path / "redirect_dir").write_text("Y\n")
    assert not layer_export.writes_plain_layers(tmp_path)


def test_a_layer_is_walked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for an image that has it on other layers, where the same names delete something."""
    layer, below, other = (tmp_path / name / "diff" for name in ("layer", "below", "other"))
    for place in (layer, below, other):
        (place / "opt").mkdir(parents=True)
    for name in ("deleted", "opt/made-by-a-run"):
        os.mknod(layer / name, stat.S_IFCHR, os.makedev(0, 0))
    (below / "deleted").touch()
    (other / "opt" / "made-by-a-run").touch()
    if os.geteuid() == 0:
        (layer / "file").touch()
        os.chown(layer / "file", 1_000_000, 70_000)
    assert layer_export.vain_deletions(str(layer), [str(below)]) == ["opt/made-by-a-run"]
    monkeypatch.delattr(os, "scandir")
    monkeypatch.delattr(os, "walk")
    assert layer_export.vain_deletions(str(layer), [str(below)]) == ["opt/made-by-a-run"]
    assert layer_export.vain_deletions(str(layer), [str(other), str(below)]) == []
    assert layer_export.found_in(str(layer))["high_ids"] == ([70_000, 1_000_000] if os.geteuid() == 0 else [])


def test_a_root_that_is_no_overlay_is_one_layer(tmp_path: Path) -> None:
    root = write_rootfs(tmp_path / "root")
    for name in ("layers", "staging"):
        (tmp_path / name).mkdir()
    copy = (str(root), tmp_path / "layers", tmp_path / "staging", "f" * 64, ["sha256:1", "sha256:2"])
    assert layer_export.copy_layers(*copy) == ["whole-" + "f" * 32] == layer_export.copy_layers(*copy)
    assert (tmp_path / "layers" / ("whole-" + "f" * 32) / "opt" / "two").stat().st_nlink == 2


def test_what_a_runtime_provides_is_a_layer_that_follows_no_link_and_keeps_the_images_modes(tmp_path: Path) -> None:
    root, outside = write_rootfs(tmp_path / "root"), tmp_path / "outside"
    layer_export.write_top(root, tmp_path / "top")
    assert (tmp_path / "top" / "etc").stat().st_mode & 0o777 == 0o750
    assert not (tmp_path / "top" / "etc" / "hosts").is_symlink()
    assert {path.name for path in (tmp_path / "top").iterdir()} == {"etc", "dev", "proc", "sys", "tmp"}
    outside.mkdir()
    (root / "etc").rename(tmp_path / "etc")
    (root / "etc").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        layer_export.write_top(root, tmp_path / "again")
    assert list(outside.iterdir()) == []


# --- root file systems of one's own -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_cache")
async def test_a_rootfs_is_copied_once_and_again_when_anything_of_it_changed(tmp_path: Path) -> None:
    root = write_rootfs(tmp_path / "root")
    source = ImageSource(tmp_path, rootfs=root)
    first = await build_image(source)
    build._built.clear()  # pyright: ignore[reportPrivateUsage]  # as another process would begin
    assert await build_image(source) == first
    assert (first.directories[1] / "opt" / "two").stat().st_nlink == 2
    assert (first.env, first.workdir, first.user) == ({}, "/", "0")
    times = (root / "opt" / "one").stat()
    (root / "opt" / "one").write_text("2")
    os.utime(root / "opt" / "one", ns=(times.st_atime_ns, times.st_mtime_ns))
    second = await build_image(source)
    assert (second.directories[1] / "opt" / "two").read_text() == "2"
    assert (first.directories[1] / "opt" / "two").read_text() == "1", "a copy, not the user's own files"


@pytest.mark.usefixtures("own_cache")
async def test_the_wait_for_other_builds_is_no_part_of_a_builds_limit(tmp_path: Path) -> None:
    source, limit_sec = ImageSource(tmp_path, rootfs=write_rootfs(tmp_path / "root")), 5.0
    async with contextlib.AsyncExitStack() as busy:
        for _ in os.sched_getaffinity(0):
            await busy.enter_async_context(cache.building())
        waiting = [asyncio.ensure_future(build_image(source, build_timeout_sec=limit_sec)) for _ in range(2)]
        await asyncio.wait(waiting, timeout=limit_sec + 1)
        assert not any(task.done() for task in waiting)
    first, second = await asyncio.gather(*waiting)
    assert first == second


@pytest.mark.usefixtures("own_cache")
async def test_what_is_no_root_file_system_is_refused_with_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "manifest.json").write_text("[]")
    (tmp_path / "text.tar").write_text("no tar")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("saved", "docker-archive:PATH"),
        ("text.tar", "neither a directory nor a tar"),
        ("empty", "no /bin/sh"),
        ("absent", "does not exist"),
    ):
        with pytest.raises(SandboxStartError, match=words):
            await build_image(ImageSource(tmp_path, rootfs=tmp_path / name))
    assert list(cache.layers_dir().iterdir()) == []
    with pytest.raises(UsageError, match="one or the other"):
        make_sandbox(tmp_path, image="x", rootfs="/y")


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_sandbox_stands_on_a_tar(tmp_path: Path) -> None:
    require_engine("local")
    tar = await ensure_base_tar()
    async with running(make_sandbox(tmp_path, dockerfile="FROM registry.invalid/x:1\n", rootfs=tar)) as sandbox:
        assert await output(sandbox, "id -un && . /etc/os-release && echo $ID && cat /etc/hostname") == (
            "root\ndebian\nsandbox"
        )


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_sandbox_sees_what_the_builder_sees_and_the_base_is_there_once(tmp_path: Path) -> None:
    require_engine("local")
    dockerfile = (
        f"FROM {BASE}\nENV BUILT_AT={time.time()}\n"  # in one run of the builder: times of files are compared
        "RUN rm /etc/issue && cd /usr/share && rm -r python3 && mkdir python3 && echo new > python3/new\n"
        "RUN chmod 600 /etc/issue.net && chown 7:8 /etc/profile && ln /usr/share/python3/new /linked\n"
        "RUN rm -r /var/lib/dpkg && mkdir /var/lib/dpkg && rm /etc/shells && mkdir /etc/shells\n"
        "RUN mv /usr/share/python3 /moved && touch /usr/share/python3\n"
        "ENV EMPTY=layer\n"
    )
    async with running(make_sandbox(tmp_path / "one", dockerfile=dockerfile)) as sandbox:
        inside = await output(sandbox, LISTING.format("/"))
    image = await build_image(ImageSource(tmp_path / "one" / "environment"))
    assert inside == await _as_buildah_sees_it(tmp_path / "one" / "environment")
    other = tmp_path / "other"
    other.mkdir()
    (other / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo other > /other\n")
    assert (await build_image(ImageSource(other))).layers[-1] == image.layers[-1]


async def _as_buildah_sees_it(context: Path) -> str:
    base = await build.resolve_base(BASE)
    folder = context.parent / "build"
    folder.mkdir()
    # With the words of our own builds, so that the layers are theirs.
    files = Context(context, folder)
    recipe = read((context / "Dockerfile").read_text())
    written = folder / "Dockerfile"
    written.write_text(planned(recipe, {BASE: base.start}, {BASE: base.reference}, files).text)
    build_it = build_argv(folder, files, written, is_fresh=False)
    code, printed = await run_buildah(*build_it, environment=run_environment())
    assert code == 0, printed
    script = (
        'container=$(buildah from "$1") && root=$(buildah mount "$container") && eval "$2"; '
        'buildah rm "$container" >/dev/null'
    )
    identity = (folder / "id").read_text()
    code, listed = await run_tool(*contained(), "sh", "-c", script, "sh", identity, LISTING.format('"$root"'))
    assert code == 0, listed
    return listed.strip()


@pytest.mark.local
@pytest.mark.usefixtures("own_cache")
async def test_an_image_is_built_while_another_is_exported_and_what_they_share_is_copied_once(tmp_path: Path) -> None:
    require_engine("local")
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo {name} {uuid.uuid4()} >/own\n")
    async with cache.locked(cache.LAYERS_LOCK, shared=True):  # as a long export
        images = await asyncio.gather(*(build_image(ImageSource(tmp_path / name)) for name in ("one", "two", "three")))
    assert len({image.layers[-1:] for image in images}) == 1
    assert [(image.directories[1] / "own").read_text().split()[0] for image in images] == ["one", "two", "three"]


_TWICE = f"FROM {BASE}\nRUN echo one >/file\nCOPY Dockerfile /same\nCOPY Dockerfile /same\nRUN echo two >/file\n"
"""Two COPYs leave the same layer, whenever each is done. The topmost has a directory of its own in any case."""


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_layer_that_an_image_has_twice_is_mounted_once(tmp_path: Path) -> None:
    require_engine("local")
    async with running(make_sandbox(tmp_path, dockerfile=_TWICE)) as sandbox:
        assert await output(sandbox, "cat /file") == "two"
    image = await build_image(ImageSource(tmp_path / "environment"))
    assert len(image.layers) == len(image.directories) + 1


@pytest.mark.local
@pytest.mark.apptainer
async def test_a_layer_that_an_image_has_twice_is_in_its_sif_file(tmp_path: Path) -> None:
    require_engine("local")
    (tmp_path / "Dockerfile").write_text(_TWICE)
    await build_sif(await build_image(ImageSource(tmp_path)), tmp_path / "twice.sif")
    assert (tmp_path / "twice.sif").stat().st_size > 1 << 20


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left", "own_cache")
async def test_archives_serve_as_images(tmp_path: Path) -> None:
    require_engine("local")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /it\nENV OF=archive\nWORKDIR /there\n")
    name = f"localhost/harbor-gym-test-archive-{uuid.uuid4().hex}:1"
    code, printed = await run_tool(*contained(), "buildah", "bud", "--quiet", "--tag", name, str(tmp_path))
    assert code == 0, printed
    try:
        for target in ("docker-archive:{}/docker.tar", "oci-archive:{}/oci.tar", "oci:{}/directory:1"):
            code, printed = await run_tool(*contained(), "buildah", "push", "--quiet", name, target.format(tmp_path))
            assert code == 0, printed
        found: list[Image] = []
        for reference in ("docker-archive:docker.tar", f"oci-archive:{tmp_path}/oci.tar", "oci:directory:1"):
            image = await build_image(ImageSource(tmp_path, reference))
            assert (image.env["OF"], image.workdir) == ("archive", "/there")
            assert (image.directories[1] / "it").read_text().startswith("FROM scratch")
            found.append(image)
    finally:
        await run_tool(*contained(), "buildah", "rmi", "--force", name)
    assert len({image.digest for image in found}) == 3
    assert len({image.layers[1:] for image in found}) == 1, "the same layer, wherever it came from"
    with pytest.raises(SandboxStartError, match=r"absent\.tar does not exist"):
        await build_image(ImageSource(tmp_path, "oci-archive:absent.tar"))
    with pytest.raises(SandboxStartError, match=r"(?s)can't be read.*docker save"):
        await build_image(ImageSource(tmp_path, "docker-archive:Dockerfile"))
    assert not sources.is_archive("docker.io/library/debian:12")


# --- set-up done once -------------------------------------------------------------------------------------------------

SETUP = (
    "date +%N >> /runs; pwd > /where; env > /seen; rm /etc/issue; rm -r /var/lib/dpkg; mkdir -m 711 /var/lib/dpkg; "
    "echo x > /owned; chown 1234:4321 /owned; chmod 2640 /owned; ln /owned /second; ln -s /host/none /link; "
    "setsid sleep 1000 > /dev/null 2>&1 & sleep 0.3"
)


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_eight_sandboxes_start_from_one_set_up(tmp_path: Path) -> None:
    require_engine("local")
    secret = "s3cr3t-of-the-task"

    async def look(number: int) -> str:
        sandbox = make_sandbox(
            tmp_path / str(number), setup_command=f"{SETUP} # {tmp_path}", persistent_env={"SECRET": secret}
        )
        async with running(sandbox):
            assert await output(sandbox, "echo $SECRET") == secret
            return await output(
                sandbox,
                "cat /runs /where /seen; ls /etc/issue /var/lib/dpkg 2>&1; stat -c '%u %g %a %h' /owned; "
                "stat -c '%u %g %a' /var/lib/dpkg; "
                "readlink /link; grep -h sleep /proc/[0-9]*/comm; rm /owned; cat /second",
            )

    shown = await asyncio.gather(*(look(number) for number in range(8)))
    assert len(set(shown)) == 1, "all stand on what one run left"
    lines = shown[0].splitlines()
    assert lines[0].isdigit()
    assert lines[1] == "/app"
    assert "GREETING=hello world" in lines
    assert "ls: cannot access '/etc/issue': No such file or directory" in lines
    assert "1234 4321 2640 2" in lines
    assert "0 0 711" in lines
    assert "/host/none" in lines
    assert "sleep" not in lines
    (layer,) = [
        path.parent for path in cache.layers_dir().glob("set-up-*/runs") if path.read_text().strip() == lines[0]
    ]
    kept = [path for path in layer.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in kept if secret.encode() in path.read_bytes()]
    records = (cache.cache_dir() / "images").glob("*/*.json")
    assert not [path for path in records if secret in path.read_text()]


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_set_up_that_fails_is_a_start_that_fails_and_leaves_nothing(tmp_path: Path) -> None:
    require_engine("local")
    trace = f"trace-{uuid.uuid4().hex}"
    for number in range(2):
        command = f"touch /srv/{trace}; echo last words >&2; exit 3"
        sandbox = make_sandbox(tmp_path / str(number), setup_command=command)
        with pytest.raises(SandboxStartError, match="setup_command ended with status 3: last words"):
            async with running(sandbox):
                pass
    command = f"touch /srv/{trace}; sleep 1000"
    starting = asyncio.ensure_future(make_sandbox(tmp_path, setup_command=command).start(force_build=False))
    await asyncio.sleep(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert find_trace(trace) == []


def find_trace(name: str) -> list[str]:
    """Return where the cache's layers hold a file; other tests add layers meanwhile."""
    return [root for root, _, names in os.walk(cache.layers_dir()) if name in names]
