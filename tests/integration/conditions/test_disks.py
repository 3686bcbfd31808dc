"""Disks that are full or can't be written to: one line with the place and the remedy."""

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.sandboxes import environment_config, preflight
from harbor_gym.sandboxes.images.base_images import resolve_base
from harbor_gym.sandboxes.images.build import ImageSource, build_image
from tests.helpers.bases import ensure_base_tar, make_base
from tests.helpers.engine_double import EngineDouble, in_turn, serve
from tests.helpers.engines import require_engine
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.sandboxes.timed_fakes import Counted
from tests.helpers.tasks import DONE, write_task
from tests.integration.conditions.command import harbor_gym

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own: run as root"),
]


@contextlib.contextmanager
def disk(place: Path, *, is_full: bool | None = None, size: str = "64k") -> Generator[Path]:
    """Mount a small disk that is full (True) or read-only (False)."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "disk", place], check=True)
    try:
        if is_full:
            with contextlib.suppress(OSError), (place / "full").open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        elif is_full is not None:
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize(
    ("is_full", "says"),
    [
        (True, "No space left on device: free some space there, or name another folder"),
        (False, "Read-only file system: make it writable, or name another folder"),
    ],
)
def test_a_task_is_not_made_there_and_no_half_of_one_stays(is_full: bool, says: str, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", is_full=is_full) as place:
        done = run_here("init", place / "a-task")
        assert not (place / "a-task").exists()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"error: {place / 'a-task'}")
    assert done.stderr.rstrip().endswith(says)


@pytest.mark.parametrize("command", ["eval", "cache"])
def test_a_cache_that_can_not_be_written_to_is_named_with_its_variable(command: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    words: dict[str, list[str | Path]] = {
        "eval": ["eval", task, "--env", "local", "--model", "m", "--base-url", "http://127.0.0.1:9/v1"],
        "cache": ["cache", "list"],
    }
    with disk(tmp_path / "disk", is_full=False) as place:
        cache = place / "cache"
        done = harbor_gym(*words[command], HARBOR_GYM_CACHE=cache)
    assert done.returncode == 2, done.stderr
    assert f"the cache {cache} can't be used (Read-only file system): set HARBOR_GYM_CACHE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("is_full", "remedy"), [(True, "free some space there"), (False, "make it writable")])
def test_a_folder_for_results_that_takes_none_is_named(is_full: bool, remedy: str, tmp_path: Path) -> None:
    run = tmp_path / "run/transcripts/train/batch_0001/group_000"
    run.mkdir(parents=True)
    episode = {"format": 2, "task": "t", "reward": 1.0, "end_reason": "completed", "turns": []}
    (run / "episode_000.json").write_text(json.dumps(episode), encoding="utf-8")
    with disk(tmp_path / "disk", is_full=is_full) as place:
        page, kept = place / "page.html", place / "kept"
        reported = run_here("report", tmp_path / "run", "--output", page)
        played = run_here("demo", "--keep", kept)
        with page.open("a") if is_full else (tmp_path / "elsewhere").open("w") as file:
            command = [sys.executable, "-m", "harbor_gym", "--help"]
            printed = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    why = os.strerror(errno.ENOSPC if is_full else errno.EROFS)
    assert (reported.returncode, reported.stderr) == (1, f"error: {page}: {why}: {remedy}, or name another folder\n")
    *_, line = played.stderr.splitlines()
    assert played.returncode == 1
    assert f"can't be set up: {kept}" in line
    assert line.endswith(f"{why}: {remedy}, or name another folder")
    if is_full:
        assert (printed.returncode, printed.stderr) == (1, f"error: {page}: {why}: {remedy}, or name another folder\n")


@pytest.mark.parametrize("is_full", [True, False])
async def test_an_evaluation_that_can_not_be_kept_is_one_line(is_full: bool, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    sandbox = ["--env", Counted.PATH, "--sandbox-option", f"solved_when={json.dumps({'/srv/answer': 'done'})}"]
    async with serve(EngineDouble(write=in_turn(message(DONE), COMPLETE))) as double:
        words = ["eval", task, *sandbox, "--model", "m", "--base-url", double.url, "--episodes", "2"]
        with disk(tmp_path / "disk", is_full=is_full) as place:
            done = await asyncio.to_thread(run_here, *words, "--output", place / "out")
    why = "No space left on device: free some space there" if is_full else "Read-only file system: make it writable"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert str(place) in done.stderr
    assert done.stderr.endswith(f"{why}, or name another folder\n")


@pytest.mark.tinker
@pytest.mark.server
@pytest.mark.parametrize("is_full", [True, False])
def test_a_run_that_can_not_be_kept_is_one_line(is_full: bool, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", is_full=is_full) as place:
        run = place / "run"
        words = ["train", "--task-dir", "task:devops_task", "--env", "local", "--backend", "local"]
        done = run_here(*words, "--log-path", run)
    why = "No space left on device: free some space there" if is_full else "Read-only file system: make it writable"
    refused = f"{run} can't be the run's folder: {run}: {why}, or name another folder\n"
    assert (done.returncode, done.stderr) == (2, f"error: {refused}")


def test_a_full_disk_that_an_error_does_not_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, says = (
        OSError(errno.ENOSPC, "full"),
        "No space left on device: free some space there, or name another folder",
    )
    with disk(tmp_path / "disk", is_full=True) as place:
        monkeypatch.setattr(sys, "argv", ["harbor-gym", "sweep", "--sweep-path", str(place / "absent/sweep")])
        assert describe_disk_failure(error) == f"{place}: {says}"
        monkeypatch.setattr(sys, "argv", ["harbor-gym", "train"])
        monkeypatch.chdir(place)
        assert describe_disk_failure(error) == f"{place}: {says}"
        monkeypatch.chdir(tmp_path)


def test_doctor_goes_on_and_says_which_sandboxes_can_not_be_used(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", is_full=False) as place:
        done = harbor_gym("doctor", HARBOR_GYM_CACHE=place / "cache")
    assert done.returncode == 1
    assert "to use --env local: set HARBOR_GYM_CACHE to a folder on a disk with room" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_sandbox_that_keeps_nothing_in_the_cache_starts_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_GYM_CACHE", "/proc/cache")
    with pytest.raises(UsageError, match="HARBOR_GYM_CACHE"):
        preflight(environment_config("local"))
    preflight(environment_config(Counted.PATH))


@pytest.mark.parametrize(
    ("command", "kind"), [("eval", "missing"), ("doctor", "missing"), ("demo", "missing"), ("eval", "read-only")]
)
def test_a_folder_for_temporary_files_that_can_not_be_used_is_named(command: str, kind: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    words: list[str | Path] = [command]
    if command == "eval":
        words += [task, "--env", "local", "--model", "m", "--base-url", "http://127.0.0.1:9/v1"]
    with disk(tmp_path / "disk", is_full=False) as place:
        chosen = place / "absent" if kind == "missing" else place
        done = harbor_gym(*words, TMPDIR=chosen)
    why = "is no folder" if kind == "missing" else "can't be written to"
    assert f"TMPDIR is {chosen}, which {why}" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if command == "eval":
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "set it to a folder that can be written to, or unset it" in done.stderr


async def test_a_buildah_that_can_not_tell_is_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never "the base is not here", for which a base was once made anew without a word."""
    require_engine("local")
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with pytest.raises(SandboxStartError) as raised:
        await resolve_base("harbor-gym-tests/nowhere:1")  # which nothing in this process has looked for
    assert "/nowhere: no such file or directory" in str(raised.value)
    assert "is not on this machine" not in str(raised.value)


async def test_a_cache_that_fills_up_while_an_image_is_kept_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine("local")
    context = tmp_path / "environment"
    context.mkdir()
    (context / "file").write_bytes(bytes(1 << 20))
    (context / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n", encoding="utf-8")
    with disk(tmp_path / "disk", size="256k") as place:
        monkeypatch.setenv("HARBOR_GYM_CACHE", str(place / "cache"))
        with pytest.raises(SandboxStartError) as raised:
            await build_image(ImageSource(context))
        assert not list((place / "cache/layers").glob("[!.]*")), "no half of a layer stays"
    assert str(raised.value).endswith(
        f"can't be exported: {place / 'cache'}: No space left on device: free some space there, "
        "or set HARBOR_GYM_CACHE to another folder"
    )


@pytest.mark.parametrize("name", ["COPY of a file", "COPY of a directory", "COPY with a mode"])
async def test_a_store_that_fills_up_during_a_build_is_named_with_what_frees_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tmp_path / "environment"
    (context / "own").mkdir(parents=True)
    (context / "own" / "large").write_bytes(os.urandom(40 << 20))
    lines = {"COPY of a file": "COPY own/large /large", "COPY of a directory": "COPY own /own"}
    line = lines.get(name, "COPY --chmod=700 own /tmp/")
    (context / "Dockerfile").write_text(f"FROM scratch\n{line}\n")
    with disk(tmp_path / "disk", size="24m") as place:
        (tmp_path / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{place}/run"\ngraphroot = "{place}/graph"\n'
        )
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
        with pytest.raises(SandboxStartError) as caught:
            await build_image(ImageSource(context))
    said = str(caught.value)
    assert (
        f"{context / 'Dockerfile'}:2 does not build: {(context / 'Dockerfile').read_text().splitlines()[1]}: " in said
    )
    assert "harbor-gym cache prune" in said
    assert "Request" not in said, "buildah's own configuration"


async def test_a_store_that_a_base_fills_is_named_with_what_frees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = await ensure_base_tar()
    (tmp_path / "cache" / "bases").mkdir(parents=True)
    shutil.copy(base, tmp_path / "cache" / "bases")
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    with disk(tmp_path / "disk", size="24m") as place:
        (tmp_path / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{place}/run"\ngraphroot = "{place}/graph"\n'
        )
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
        with pytest.raises(SandboxStartError) as caught:
            await make_base("debian:bookworm-slim")
    said = str(caught.value)
    assert re.search(rf"the base of Debian 12 can't be imported .*disk of {place}/graph is full.*cache prune", said)
    assert "Request" not in said, "buildah's own configuration"
