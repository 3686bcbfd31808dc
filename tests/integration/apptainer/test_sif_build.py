"""``harbor-gym sif build``: files and a manifest for many tasks, made once and found where nothing can build them."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from harbor_gym.sandboxes.apptainer.programs import find_mksquashfs
from harbor_gym.sandboxes.apptainer.sif.format import read_sif
from tests.helpers.engines import require_engine
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.apptainer import make_sandbox
from tests.helpers.sandboxes.local import output, running
from tests.helpers.tasks import write_task
from tests.unit.sandboxes.apptainer.test_sif_format import PARTITION, partition, write_sif

pytestmark = pytest.mark.apptainer

DOCKERFILE = "FROM debian:bookworm-slim\nENV WHERE=here\nWORKDIR /srv\n"


def no_program(_name: str) -> str | None:
    """Find nothing: a machine without buildah."""
    return None


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Three tasks: two of one image, and one whose Dockerfile fails."""
    folder = tmp_path / "tasks"
    for name in ("first", "second"):
        write_task(folder / name, dockerfile=DOCKERFILE)
    write_task(folder / "third", dockerfile="FROM debian:bookworm-slim\nRUN false\n")
    return folder


async def test_files_are_made_once_and_found_without_a_builder(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "sif"
    done = await asyncio.to_thread(run_here, "sif", "build", tasks, "--output", directory)
    assert done.returncode == 1
    assert "third:" in done.stderr
    assert "does not build" in done.stderr
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["format"] == 2
    assert set(manifest["images"]) == {"first", "second"}
    assert manifest["images"]["first"]["sha256"] == manifest["images"]["second"]["sha256"]
    file = directory / manifest["images"]["first"]["file"]
    assert [path.name for path in directory.glob("*.sif")] == [file.name]
    made = file.stat().st_mtime_ns

    again = json.loads(
        (await asyncio.to_thread(run_here, "sif", "build", tasks / "first", "--output", directory, "--json")).stdout
    )
    assert [(item["task"], item["is_new"], item["error"]) for item in again] == [("first", False, "")]
    assert file.stat().st_mtime_ns == made

    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("harbor_gym.sandboxes.images.build.find_program", no_program)
    async with running(make_sandbox(tmp_path, dockerfile=DOCKERFILE, image_cache_dir=directory)) as sandbox:
        assert await output(sandbox, "echo $WHERE; pwd") == "here\n/srv"


@pytest.mark.parametrize("compressor", ["gzip", "lzma", "lzo", "xz", "lz4", "zstd"])
def test_the_high_ids_of_a_file_of_others_are_found(
    compressor: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So many, so alike that each compressor makes the table of them shorter: a longer one would be left plain."""
    require_engine("apptainer")
    owners = [(0x11100 + number, 0x20005 + 256 * number) for number in range(200)]
    tree, root = tmp_path / "tree", tmp_path / "root.squashfs"
    tree.mkdir()
    for uid, _ in owners:
        (tree / str(uid)).mkdir()
    entries = [f"{uid} m 755 {uid} {gid}" for uid, gid in owners]
    (tmp_path / "pseudo").write_text("\n".join(entries), encoding="utf-8")
    words = (str(tree), str(root), "-comp", compressor, "-pf", str(tmp_path / "pseudo"))
    subprocess.run([find_mksquashfs(), *words], check=True, capture_output=True)
    image = read_sif(write_sif(tmp_path / "image.sif", [(PARTITION, root.read_bytes(), "root", partition())]))
    assert set(image.high_ids) == {number for pair in owners for number in pair}
    assert caplog.records == []


def test_a_registry_of_another_kind_is_refused(tasks: Path) -> None:
    done = run_here("sif", "build", tasks, "--push", "docker://host/path")
    assert (done.returncode, done.stdout) == (2, "")
    assert "oras://HOST/PATH" in done.stderr
