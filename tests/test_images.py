"""Images of local sandboxes: what is built, what is cached, what stands in for what can't be had."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import cache
from harbor_gym.cache import cache_dir, locked
from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes import base_image, bases, dockerfile, images
from harbor_gym.sandboxes.docker_images import find_in_docker
from harbor_gym.sandboxes.images import Image, ImageSource
from harbor_gym.sandboxes.tools import run_tool
from tests.engines import require_engine

BASE = "debian:bookworm-slim"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    path = tmp_path / "environment"
    path.mkdir()
    return path


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a process-wide memory that nobody used before."""
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "_built", {})
    for memory in ("_unreachable", "_warned"):
        monkeypatch.setattr(bases, memory, set())
    return tmp_path / "cache"


async def build_image(context: Path, *, docker_image: str | None = None, **options: Any) -> Image:
    return await images.build_image(ImageSource(context, docker_image), **options)


def find(image: Image, name: str) -> Path:
    """Return a file of an image in the layer that has it."""
    return next(layer / name for layer in image.directories if os.path.lexists(layer / name))


# --- Dockerfiles, read ------------------------------------------------------------------------------------------------


def test_bases_are_found_behind_arguments_stages_and_copies() -> None:
    text = """\
ARG TAG=12
ARG NAME="debian"
FROM --platform=linux/amd64 ${NAME}:${TAG} AS Build
ARG TAG=ignored-here
FROM scratch AS none
FROM build
COPY --from=build /a /a
COPY --from=0 /a /a
COPY --chown=1:1 --from=ghcr.io/astral-sh/uv:1 /uv /uv
from ${MISSING:-ubuntu}:24.04
FROM debian:12
"""
    assert dockerfile.base_references(text) == ["debian:12", "ghcr.io/astral-sh/uv:1", "ubuntu:24.04"]
    replaced = dockerfile.replace_references(
        text, {"debian:12": "localhost/x", "ghcr.io/astral-sh/uv:1": "localhost/y"}
    )
    assert "FROM --platform=linux/amd64 localhost/x AS Build\n" in replaced
    assert "COPY --chown=1:1 --from=localhost/y /uv /uv\n" in replaced
    assert replaced.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RUN <<EOF\necho\nEOF\n", True),
        ("COPY <<-'EOF' /x\nEOF\n", True),
        ("RUN cat <<< word\n", False),
        ("RUN echo $((1<<3))\n", False),
        ("# RUN <<EOF\n", False),
    ],
)
def test_heredocs_are_told_from_shifts_and_here_strings(text: str, expected: bool) -> None:
    assert dockerfile.has_heredoc(text) is expected


@pytest.mark.parametrize(
    ("reference", "full", "is_family"),
    [
        ("debian:12", "docker.io/library/debian:12", True),
        ("ubuntu", "docker.io/library/ubuntu", True),
        ("debian@sha256:00", "docker.io/library/debian@sha256:00", True),
        ("debian-like:1", "docker.io/library/debian-like:1", False),
        ("me/debian", "docker.io/me/debian", False),
        ("localhost/debian", "localhost/debian", False),
        ("quay.io:443/x/y:1", "quay.io:443/x/y:1", False),
    ],
)
def test_short_references_are_spelled_out(reference: str, full: str, is_family: bool) -> None:
    assert dockerfile.full_reference(reference) == full
    assert dockerfile.is_debian_family(full) is is_family


def test_both_kinds_of_apt_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://off bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://one/debian bookworm main contrib # x\n"
        "deb-src http://src bookworm main\n"
    )
    (tmp_path / "sources.list.d" / "two.sources").write_text(
        "Types: deb deb-src\n# a remark\nURIs: http://two/debian http://three/debian\nSuites: trixie trixie-updates\n"
        "Components: main\nSigned-By: /two.gpg\n\nTypes: deb\nURIs: http://off\nSuites: x\nEnabled: no\n"
    )
    one, two, three = base_image.apt_mirrors(tmp_path)
    assert one == base_image.Mirror("http://one/debian", ("bookworm",), ("main", "contrib"), "/k.gpg")
    assert two == base_image.Mirror("http://two/debian", ("trixie", "trixie-updates"), ("main",), "/two.gpg")
    assert three.uri == "http://three/debian"


@pytest.mark.parametrize(
    ("source", "suite", "uri"),
    [
        ("deb http://one/debian trixie main", "bookworm", "http://one/debian"),
        ("deb http://one/ubuntu noble-updates main universe", "noble", "http://one/ubuntu"),
        ("deb http://one/ubuntu noble main\ndeb http://two/debian bookworm main", "bookworm", "http://two/debian"),
    ],
)
def test_the_base_comes_from_an_archive_that_the_machine_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, suite: str, uri: str
) -> None:
    (tmp_path / "sources.list").write_text(source + "\n")
    mirrors = base_image.apt_mirrors(tmp_path)
    monkeypatch.setattr(base_image, "apt_mirrors", lambda: mirrors)
    assert base_image.base_name().startswith(f"{suite}-")
    assert base_image.description() == f"harbor-gym offline base (mmdebstrap {suite})"
    chosen, mirror = base_image._choose_mirror(mirrors)  # pyright: ignore[reportPrivateUsage]  # no public way to see it
    assert (chosen, mirror.uri) == (suite, uri)


def test_a_machine_without_an_archive_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_image, "apt_mirrors", list)
    with pytest.raises(SandboxStartError, match="Debian or Ubuntu"):
        base_image.base_name()


# --- the cache --------------------------------------------------------------------------------------------------------


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("HARBOR_GYM_CACHE", raising=False)
    assert cache_dir() == tmp_path / "xdg" / "harbor_gym"
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    assert (tmp_path / "own").is_dir()


@pytest.mark.usefixtures("own_cache")
async def test_a_lock_keeps_others_out_and_a_cancelled_wait_frees_nothing() -> None:
    order: list[str] = []

    async def hold(name: str) -> None:
        async with locked("x"):
            order.append(f"{name} in")
            await asyncio.sleep(0.1)
            order.append(f"{name} out")

    async with locked("x"):
        waiting = asyncio.ensure_future(hold("cancelled"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.TaskGroup() as group:
        group.create_task(hold("a"))
        group.create_task(hold("b"))
    assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def local_engine() -> None:
    require_engine("local")


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_an_image_has_what_its_dockerfile_says(context: Path) -> None:
    (context / "Dockerfile").write_text(
        f"ARG V=1\nFROM {BASE} AS build\nARG V\nRUN echo built-$V > /built\n"
        f'FROM {BASE}\nENV A="b c" D=e\nCOPY --from=build /built /built\nCOPY --chown=65534 data /data\n'
        "WORKDIR /one\nWORKDIR two\nUSER 65534:0\n"
    )
    (context / "data").write_text("data")
    image = await build_image(context)
    assert (image.env["A"], image.env["D"], image.workdir, image.user) == ("b c", "e", "/one/two", "65534:0")
    assert find(image, "built").read_text() == "built-1\n"
    assert find(image, "data").stat().st_uid == 65534
    assert find(image, "etc/hosts").read_text().startswith("127.0.0.1\tlocalhost")


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left")
async def test_an_image_is_built_once_and_anew_when_its_context_changes(
    context: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nCOPY . /ctx\nRUN head -c 8 /dev/urandom | od -x > /stamp\n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(build_image(context)) for _ in range(8)]
    first = tasks[0].result()
    assert all(task.result() == first for task in tasks)
    monkeypatch.setattr(images, "_built", {})  # what another process would find
    assert await build_image(context) == first
    (context / "more").write_text("x")
    second = await build_image(context)
    assert second.digest != first.digest
    (context / "more").chmod(0o755)
    assert (await build_image(context)).digest not in (first.digest, second.digest)
    assert len(list((own_cache / "images").iterdir())) == 3
    forced = await build_image(context, force_build=True)
    assert forced.layers != second.layers
    assert second.layers[-1] == forced.layers[-1], "the base is there once"
    cache.prune()
    assert second.is_there, "sandboxes may still stand on it"


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_failing_dockerfile_is_an_error_with_the_builders_last_words(context: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo last words >&2; exit 42\n")
    with pytest.raises(SandboxStartError, match=r"(?s)Dockerfile does not build.*last words.*42"):
        await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_missing_or_malformed_dockerfile_is_an_error(context: Path) -> None:
    with pytest.raises(SandboxStartError, match="no Dockerfile"):
        await build_image(context)
    (context / "Dockerfile").write_text(f"FROM {BASE}\nNONSENSE here\n")
    with pytest.raises(SandboxStartError, match="NONSENSE"):
        await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_heredocs_build_or_are_refused_with_advice(context: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN <<EOF\necho here > /doc\nEOF\n")
    _, version = await run_tool("buildah", "--version")
    if dockerfile.builds_heredocs(version):
        assert find((await build_image(context)), "doc").read_text() == "here\n"
    else:
        with pytest.raises(SandboxStartError, match=r"install buildah 1\.33"):
            await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_base_that_can_not_be_had_is_an_error_that_says_what_to_do(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM registry.invalid/nothing:1\n")
    with pytest.raises(SandboxStartError, match=r"buildah pull registry\.invalid/nothing:1"):
        await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_substituted_base_is_loud_recorded_and_never_taken_for_the_real_one(
    context: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard_of = "debian:no-such-tag-for-tests"
    (context / "Dockerfile").write_text(f"FROM {unheard_of}\nRUN echo x > /x\n")
    with caplog.at_level(logging.WARNING):
        image = await build_image(context)
        await build_image(context)
    assert image.substitutions == (f"{unheard_of} -> {base_image.description()}",)
    assert [record.message.count("SUBSTITUTED") for record in caplog.records] == [1]
    await run_tool("buildah", "tag", f"localhost/harbor-gym-base:{base_image.base_name()}", unheard_of)
    try:
        monkeypatch.setattr(images, "_built", {})  # what another process would find
        real = await build_image(context)
    finally:
        await run_tool("buildah", "untag", unheard_of)
        await run_tool("buildah", "rmi", f"localhost/{unheard_of}")
    assert real.substitutions == ()
    assert real.digest != image.digest


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left")
async def test_a_build_that_is_cancelled_or_out_of_time_leaves_nothing(context: Path, own_cache: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN sleep 1000\n")
    with pytest.raises(SandboxStartError, match="took longer than 3 s"):
        await build_image(context, build_timeout_sec=3)
    task = asyncio.ensure_future(build_image(context))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await asyncio.to_thread(lambda: list(own_cache.glob("images/*/*")))


@pytest.mark.docker
@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_an_image_that_docker_holds_serves_as_image_and_as_base(context: Path) -> None:
    require_engine("docker")
    names = ["harbor-gym-test/only-in-docker:real", "debian:harbor-gym-test-stand-in"]
    (context / "where").write_text("from docker\n")
    (context / "Dockerfile").write_text("FROM scratch\nCOPY where /where\nENV WHERE=docker\nWORKDIR /there\n")
    real, stand_in = names
    try:
        for name, label in ((real, "other=1"), (stand_in, "harbor_gym.substitute=mmdebstrap")):
            code, said = await run_tool("docker", "build", "--quiet", "--label", label, "--tag", name, str(context))
            assert code == 0, said
        prebuilt = await build_image(context, docker_image=real)
        assert find(prebuilt, "where").read_text() == "from docker\n"
        assert (prebuilt.env["WHERE"], prebuilt.workdir, prebuilt.substitutions) == ("docker", "/there", ())
        (context / "Dockerfile").write_text(f"FROM {real}\nCOPY where /again\n")
        built = await build_image(context)
        assert find(built, "again").read_text() == find(built, "where").read_text()
        found = await find_in_docker(real)
        assert found is not None
        code, _ = await run_tool("buildah", "inspect", "--type", "image", found[0].removeprefix("sha256:"))
        assert code == 0, "the copy is found by Docker's own id, so it is made once"
        docker_base = bases.docker_base  # all else would try a registry first
        assert await docker_base(stand_in) is None, "a stand-in is not taken for the official image"
        code, _ = await run_tool("docker", "tag", stand_in, f"{real}-not")
        names.append(f"{real}-not")
        base = await docker_base(f"{real}-not")
        assert base is not None
        assert "offline base" in (base.substitution or ""), "what stands on a stand-in says so"
    finally:
        await run_tool("docker", "image", "rm", "--force", *names)
