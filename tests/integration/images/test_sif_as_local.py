"""SIF files of the recipes that are compared with Docker have the files and the configuration of ``local``'s images."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.sandboxes.apptainer.sif.format import SifImage
from harbor_gym.sandboxes.apptainer.sif.store import provide_sif
from harbor_gym.sandboxes.image_settings import config_of
from harbor_gym.sandboxes.images.build import ImageSource, build_image
from harbor_gym.sandboxes.tools import contained
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.dockerfile_forms import FORMS
from tests.helpers.sandboxes.dockerfile_kinds import KINDS
from tests.helpers.sandboxes.dockerfiles import WHOLES
from tests.integration.images.test_as_docker import (
    ON_BUILD,
    docker_build,
    listed,
    merged_files,
    packing,
    untouched,
    write_context,
    write_recipe,
)
from tests.integration.images.test_as_docker import (
    docker_images as docker_images,
)

pytestmark = [pytest.mark.apptainer, pytest.mark.local, pytest.mark.slow]

_UNPACKED = 'unsquashfs -quiet -no-progress -offset "$1" -dest "$2" "$3" >&2 && shift 3 && exec "$@"'


def sif_files(image: SifImage, folder: Path, left_out: list[str]) -> dict[str, Any]:
    """List the files of a SIF file."""
    words = ("sh", "-c", _UNPACKED, "sh", str(image.offset), str(folder), str(image.path))
    pack = ("tar", *packing(left_out), "-C", str(folder), ".")
    done = subprocess.run([*contained(), *words, *pack], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return listed(done.stdout)


async def compare(context: Path, folder: Path) -> None:
    """Make a SIF file of a context, and compare it with the image."""
    stored = await provide_sif(ImageSource(context), folder / "sif", build_timeout_sec=200)
    image = await build_image(ImageSource(context))
    assert config_of(stored.image) == config_of(image)
    assert stored.image.high_ids == image.high_ids
    left_out = untouched((context / "Dockerfile").read_text(encoding="utf-8"))
    ours = merged_files(image.directories, folder / "local", left_out)
    assert sif_files(stored.image, folder / "root", left_out) == ours


@pytest.mark.parametrize(
    "about", [about for about in FORMS if about not in KINDS]
)  # more of one kind takes the same way
async def test_a_form_gives_the_files_of_local(about: str, tmp_path: Path) -> None:
    require_engine("local")
    require_engine("apptainer")
    await compare(write_recipe(tmp_path / "environment", FORMS[about]), tmp_path)


@pytest.mark.parametrize("number", range(len(WHOLES)))
async def test_many_parts_give_the_files_of_local(number: int, tmp_path: Path) -> None:
    require_engine("local")
    require_engine("apptainer")
    await compare(write_context(tmp_path / "environment", WHOLES[number].text, WHOLES[number].files), tmp_path)


@pytest.mark.docker
async def test_onbuild_of_a_base_image_gives_the_files_of_local(tmp_path: Path, docker_images: list[str]) -> None:
    require_engine("apptainer")
    docker_images.append("harbor-gym-test/triggering-sif")
    base = write_context(tmp_path / "base", f"FROM debian:bookworm-slim\n{ON_BUILD % '755'}", {})
    await docker_build(base, docker_images[0])
    text = f"FROM {docker_images[0]}\nRUN echo $V $W >/tmp/said\n"
    await compare(write_context(tmp_path / "environment", text, {"one": "1", "two": "2"}), tmp_path)
