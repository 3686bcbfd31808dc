"""Images of local sandboxes: builds, the cache, and sources of a base."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime import cache
from harbor_gym._runtime.cache import building, cache_dir, locked
from harbor_gym.errors import SandboxStartError, TaskError, TaskUnsupportedError
from harbor_gym.sandboxes.images import base_images, build, docker_images
from harbor_gym.sandboxes.images.build import Image, ImageSource
from harbor_gym.sandboxes.images.docker_images import find_in_docker
from harbor_gym.sandboxes.tools import run_tool
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.tasks import write_task

BASE = "debian:bookworm-slim"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    path = tmp_path / "environment"
    path.mkdir()
    return path


async def build_image(context: Path, *, docker_image: str | None = None, **options: Any) -> Image:
    return await build.build_image(ImageSource(context, docker_image), **options)


def find(image: Image, name: str) -> Path:
    """Return a file of an image in the layer that has it."""
    return next(layer / name for layer in image.directories if os.path.lexists(layer / name))


# --- the cache --------------------------------------------------------------------------------------------------------


def test_the_cache_is_where_the_environment_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_an_image_has_what_its_dockerfile_defines(context: Path) -> None:
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
    monkeypatch.setattr(build, "_built", {})  # as another process would begin
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
async def test_the_record_of_an_image_is_read_once(context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start in another process reads it where the image is found; nothing reads it again, whatever is in it now."""
    (context / "Dockerfile").write_text("FROM scratch\nCOPY . /ctx\n")
    made = await build_image(context)
    monkeypatch.setattr(build, "_built", {})
    found = await build_image(context)
    assert found == made
    record = found.home / "image.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "entries": dict.fromkeys(made.layers, 99)}))
    image, held = await build.hold_image(ImageSource(context))
    held.release()
    assert image is found


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_failing_dockerfile_is_an_error_with_the_builders_last_words(context: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN true\nRUN echo last words >&2; exit 42\n")
    with pytest.raises(SandboxStartError, match=r"does not build: RUN .*42; its last lines:\nlast words$"):
        await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_failing_dockerfile_is_built_once_until_it_changes(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failure() -> str:
        with pytest.raises(SandboxStartError) as failed:
            await build_image(context)
        return str(failed.value)

    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN cat /proc/sys/kernel/random/uuid >&2; exit 42\n")
    first = await failure()
    assert await failure() == first, "a second build prints another number"
    monkeypatch.setattr(build, "_FAILED_SEC", 0.0)
    assert await failure() != first, "what it fetches may be reached later"
    (context / "Dockerfile").write_text(f"FROM {BASE}\n")
    assert (await build_image(context)).is_there


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
@pytest.mark.parametrize(
    "line",
    ["COPY --parents one /", "ADD --unpack=true one /", "ADD --keep-git-dir=true one /", "RUN --security=sandbox x"],
)
async def test_an_option_that_buildah_has_not_is_the_tasks_with_advice(context: Path, line: str) -> None:
    (context / "Dockerfile").write_text(f"FROM scratch\n{line}\n")
    (context / "one").write_text("1")
    with pytest.raises(TaskUnsupportedError, match=f"no such option: {line.split()[0]}.*--env docker"):
        await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_missing_or_malformed_dockerfile_is_an_error(context: Path) -> None:
    with pytest.raises(SandboxStartError, match="no Dockerfile"):
        await build_image(context)
    (context / "Dockerfile").write_text(f"FROM {BASE}\nNONSENSE here\n")
    with pytest.raises(TaskError, match=r"line 2, column 1: NONSENSE here"):
        await build_image(context)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_bytes_of_another_encoding_are_kept(context: Path) -> None:
    text = f"# caf\xe9\nFROM {BASE}\nCOPY <<x /doc\ncaf\xe9\nx\n"
    (context / "Dockerfile").write_bytes(text.encode("latin-1"))
    assert find(await build_image(context), "doc").read_bytes() == b"caf\xe9\n"


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_heredocs_build(context: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN <<EOF\necho here > /doc\nEOF\n")
    assert find((await build_image(context)), "doc").read_text() == "here\n"


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_base_that_is_not_available_is_an_error_that_states_what_to_do(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM registry.invalid/nothing:1\n")
    with pytest.raises(SandboxStartError, match=r"buildah pull registry\.invalid/nothing:1") as caught:
        await build_image(context)
    for way in ("buildah tag IMAGE registry.invalid/nothing:1", "buildah pull oci-archive:FILE", "option image="):
        assert way in str(caught.value)
    assert "build_dockerfile" not in str(caught.value)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_a_layer_that_another_process_removed_during_a_build_is_made_again(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    outputs = ["Error: checking if cached image exists from a previous build: getting top layer info: layer not known"]
    run_buildah = build.run_buildah

    async def without_its_layer(*argv: str, **settings: Any) -> tuple[int, str]:
        return (125, outputs.pop()) if outputs else await run_buildah(*argv, **settings)

    monkeypatch.setattr(build, "run_buildah", without_its_layer)
    image = await build_image(context)
    assert image.is_there
    assert not outputs


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
@pytest.mark.parametrize("name", ["registry.invalid/nothing:1", "oci-archive:absent.tar"])
async def test_a_prebuilt_image_that_is_not_available_names_the_dockerfile_beside_it(context: Path, name: str) -> None:
    with pytest.raises(SandboxStartError) as caught:
        await build_image(context, docker_image=name)
    assert "build_dockerfile" not in str(caught.value)
    (context / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(SandboxStartError, match=r"environment/Dockerfile can be built.*option build_dockerfile=true"):
        await build_image(context, docker_image=name)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_an_image_without_a_layer_is_told_what_it_lacks(tmp_path: Path) -> None:
    sandbox = make_sandbox(tmp_path, dockerfile="FROM scratch\nENV A=b\n")
    with pytest.raises(SandboxStartError, match="neither bash nor /bin/sh: a task's image needs a shell"):
        await sandbox.start(force_build=False)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left")
async def test_the_dockerfile_is_built_where_the_option_requires_it(tmp_path: Path) -> None:
    config = {"docker_image": "registry.invalid/nothing:1"}
    with pytest.raises(SandboxStartError, match="build_dockerfile"):
        await make_sandbox(tmp_path, dockerfile=f"FROM {BASE}\n", config=config).start(force_build=False)
    sandbox = make_sandbox(tmp_path, dockerfile=f"FROM {BASE}\nENV IS=built\n", config=config, build_dockerfile=True)
    async with running(sandbox):
        assert await output(sandbox, "echo $IS") == "built"


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left")
async def test_a_build_that_is_cancelled_or_out_of_time_leaves_nothing(context: Path, own_cache: Path) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN sleep 1000\n")
    at = r"building the image of .* \(at line 2: RUN sleep 1000\) took longer than 3 s \(build_timeout_sec\)"
    with pytest.raises(SandboxStartError, match=at):
        await build_image(context, build_timeout_sec=3)
    task = asyncio.ensure_future(build_image(context))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await asyncio.to_thread(lambda: list(own_cache.glob("images/*/*")))


@pytest.mark.usefixtures("own_cache")
async def test_as_many_builds_run_as_there_are_processors() -> None:
    places, running, most = len(os.sched_getaffinity(0)), 0, 0

    async def work() -> None:
        nonlocal running, most
        async with building():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.1)
            running -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3 * places):
            group.create_task(work())
    assert most == places


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_who_waits_for_a_build_fails_with_it_and_a_later_caller_after_five_minutes_tries_again(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN head -c 9 /dev/urandom | base64; exit 3\n")
    failures = await asyncio.gather(*(build_image(context) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(failure, SandboxStartError) for failure in failures)
    assert len(set(map(str, failures))) == 1
    for seconds in (300.0, 0.0):
        monkeypatch.setattr(build, "_FAILED_SEC", seconds)
        with pytest.raises(SandboxStartError) as caught:
            await build_image(context)
        assert (str(caught.value) == str(failures[0])) is (seconds > 0)


@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left")
async def test_an_image_that_was_built_for_a_start_is_let_go_without_one(tmp_path: Path, own_cache: Path) -> None:
    sandbox = make_sandbox(tmp_path, dockerfile=f"FROM {BASE}\n")
    await sandbox.build_image(force_build=False)
    assert [entry.in_use for entry in cache.entries() if entry.kind == "image"] == [True]
    await sandbox.stop(delete=True)
    assert [entry.in_use for entry in cache.entries() if entry.kind == "image"] == [False]


@pytest.mark.docker
@pytest.mark.local
@pytest.mark.usefixtures("local_engine", "nothing_left", "own_cache")
async def test_an_image_that_docker_holds_serves_as_image_and_as_base(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine("docker")
    names = ["harbor-gym-test/only-in-docker:real", "debian:harbor-gym-test-made"]
    (context / "where").write_text("from docker\n")
    (context / "Dockerfile").write_text("FROM scratch\nCOPY where /where\nENV WHERE=docker\nWORKDIR /there\n")
    real, made = names
    try:
        for name, label in ((real, "other=1"), (made, f"{docker_images.MADE_LABEL}=1")):
            code, printed = await run_tool("docker", "build", "--quiet", "--label", label, "--tag", name, str(context))
            assert code == 0, printed
        prebuilt = await build_image(context, docker_image=real)
        assert find(prebuilt, "where").read_text() == "from docker\n"
        assert (prebuilt.env["WHERE"], prebuilt.workdir) == ("docker", "/there")
        (context / "Dockerfile").write_text(f"FROM {real}\nCOPY where /again\n")
        built = await build_image(context)
        assert find(built, "again").read_text() == find(built, "where").read_text()
        found = await find_in_docker(real)
        assert found is not None
        calls: list[str] = []

        async def noted(*argv: str, **options: Any) -> tuple[int, str]:
            calls.extend(argv)
            return await run_tool(*argv, **options)

        monkeypatch.setattr(docker_images, "run_tool", noted)
        copied = await docker_images.copy_from_docker(found)
        code, _ = await run_tool("buildah", "inspect", "--type", "image", copied)
        assert (code, "save" in calls) == (0, False), "the copy is found by Docker's own id, so it is made once"
        docker_base = base_images.docker_base  # all else would try a registry first
        assert await docker_base(made) is None, "what was made is not taken for the official image"
        code, _ = await run_tool("docker", "tag", made, f"{real}-not")
        names.append(f"{real}-not")
        assert await docker_base(f"{real}-not") is not None, "what was built on it is an image like others"
    finally:
        await run_tool("docker", "image", "rm", "--force", *names)


_SET_ACL = (
    'python3 -c "import os, struct; entries = (1, 7, -1), (2, 7, 1000), (4, 5, -1), (16, 7, -1), (32, 5, -1); '
    "packed = b''.join(struct.pack('<HHi', *entry) for entry in entries); os.mkdir('/x'); "
    "os.setxattr('/x', 'system.posix_acl_default', struct.pack('<I', 2) + packed)\""
)
"""What ``mkdir /x && setfacl -d -m u:1000:rwx /x`` does."""


@pytest.mark.parametrize("place", ["dockerfile", "setup_command"])
async def test_an_acl_acts_in_the_sandbox(place: str, tmp_path: Path) -> None:
    require_engine("local")
    setup = {"dockerfile": None, "setup_command": _SET_ACL}[place]
    run = f"RUN {_SET_ACL}\n" if setup is None else ""
    task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\n{run}WORKDIR /srv\n")
    async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task, sandbox="local", setup_command=setup)) as env:
        await env.reset()
        observation, *_ = await env.step([("touch /x/f; stat -c mode:%a /x/f\n", 30.0)])
    assert "mode:664" in observation
