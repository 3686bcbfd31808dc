"""Sources of a base image: buildah's store, a registry that answers, and the images of ``.ci/bases.py``."""

import json
import logging
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.images import base_images
from harbor_gym.sandboxes.images.base_images import resolve_base
from harbor_gym.sandboxes.images.build import ImageSource, build_image
from harbor_gym.sandboxes.images.official_images import base_name, full_reference
from harbor_gym.sandboxes.images.store import show_image
from harbor_gym.sandboxes.tools import contained, run_tool
from tests.helpers.bases import main, provide
from tests.helpers.registries.image_registry import UNREACHABLE, image_registry, in_place_of_docker_io

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def name() -> Iterator[str]:
    """Return the name of an official image that this machine never had, the same for all test processes."""
    name = f"debian:bookworm-{uuid.uuid4().hex[:12]}"
    yield name
    for made in (base_name(name), full_reference(name), f"localhost/other/{name}"):
        subprocess.run(["buildah", "rmi", str(made)], capture_output=True, check=False)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Return an empty build context."""
    path = tmp_path / "real"
    path.mkdir()
    return path


@pytest.fixture
def docker_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give docker.io another address, which is out of reach to begin with."""

    def move(address: str) -> None:
        for variable, value in in_place_of_docker_io(tmp_path, address).items():
            monkeypatch.setenv(variable, value)

    monkeypatch.setattr(base_images, "_unreachable", {})
    move(UNREACHABLE)
    return move


async def push(address: str, name: str, folder: Path) -> str:
    """Put an image of one file into a registry under an official image's name; return the image's id."""
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /real\n")
    code, printed = await run_tool(*contained(), "buildah", "bud", "--quiet", "--format", "docker", str(folder))
    assert code == 0, printed
    image_id = printed.split()[-1]
    target = f"docker://{address}/library/{name}"
    code, printed = await run_tool(*contained(), "buildah", "push", "--quiet", "--tls-verify=false", image_id, target)
    assert code == 0, printed
    return image_id


@pytest.mark.usefixtures("docker_io")
async def test_a_start_without_a_base_fails_in_one_line_with_the_commands_that_bring_one(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\nRUN cat /etc/debian_version >/version\n")
    with pytest.raises(SandboxStartError) as caught:
        await build_image(ImageSource(tmp_path))
    message = str(caught.value)
    assert message.startswith(f"base image {name!r} is not on this machine, and its registry is out of reach (")
    assert "no such host" in message
    assert f"(`buildah pull docker.io/library/{name}`)" in message
    assert "`buildah pull oci-archive:FILE` or docker-archive:FILE" in message
    assert "\n" not in message

    # The same image however it is spelled, once.
    for spelling in (full_reference(name), name):
        assert await provide(spelling) == f"{spelling}: sandboxes use Debian 12 where the registry is out of reach"
    with caplog.at_level(logging.WARNING):
        image = await build_image(ImageSource(tmp_path), force_build=True)
        await resolve_base(name)
    version = next(layer / "version" for layer in image.directories if (layer / "version").exists())
    assert version.read_text().startswith("12.")
    assert [record.message.count(f"the registry of {name} is out of reach") for record in caplog.records] == [1]


@pytest.mark.usefixtures("docker_io")
async def test_a_base_serves_the_image_that_it_was_made_for_and_no_other(name: str) -> None:
    await provide(name)
    for other in (f"{name}-slim", f"{name}@sha256:{'0' * 64}"):
        with pytest.raises(SandboxStartError, match=f"`buildah pull docker.io/library/{other}`"):
            await resolve_base(other)


@pytest.mark.registry
async def test_a_registry_that_answers_comes_before_a_base(
    name: str, tmp_path: Path, real: Path, docker_io: Callable[[str], None]
) -> None:
    await provide(name)
    with image_registry(tmp_path / "registry") as registry:
        docker_io(registry.address)
        with pytest.raises(SandboxStartError, match=r"can't be pulled: .*manifest unknown") as caught:
            await resolve_base(name)
        assert "buildah pull" not in str(caught.value)
        pushed = await push(registry.address, name, real)
        assert (await resolve_base(name)).identity == pushed


@pytest.mark.registry
async def test_a_registry_that_is_back_is_asked_again(
    name: str, tmp_path: Path, real: Path, docker_io: Callable[[str], None]
) -> None:
    with pytest.raises(SandboxStartError, match="out of reach"):
        await resolve_base(name)
    with image_registry(tmp_path / "registry") as registry:
        docker_io(registry.address)
        pushed = await push(registry.address, name, real)
        assert (await resolve_base(name)).identity == pushed


@pytest.mark.registry
async def test_a_base_is_only_made_where_the_registry_is_out_of_reach_if_so_asked(
    name: str, tmp_path: Path, real: Path, docker_io: Callable[[str], None]
) -> None:
    with image_registry(tmp_path / "registry") as registry:
        docker_io(registry.address)
        with pytest.raises(SandboxStartError, match="manifest unknown"):
            await provide(name, if_missing=True)
        await push(registry.address, name, real)
        assert await provide(name, if_missing=True) == f"{name}: it is on this machine, no base is needed"
    assert await show_image(str(base_name(name))) is None


@pytest.mark.usefixtures("docker_io")
async def test_a_short_name_is_not_that_of_another_repositorys_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /other\n")
    tag = ("--tag", f"localhost/other/{name}")
    code, printed = await run_tool(*contained(), "buildah", "bud", "--quiet", *tag, str(tmp_path))
    assert code == 0, printed
    with pytest.raises(SandboxStartError, match="out of reach"):
        await resolve_base(name)
    found = await resolve_base(f"localhost/other/{name}")
    assert (await resolve_base(found.identity)).identity == found.identity


@pytest.mark.usefixtures("docker_io")
async def test_a_buildah_that_fails_is_not_taken_for_an_image_that_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    (tmp_path / "storage.conf").write_text("[storage]\ngraphroot = '/proc/none'\nrunroot = '/proc/none'\n")
    with pytest.raises(SandboxStartError, match=r"(?s)buildah can't tell whether .*/proc/none") as caught:
        await resolve_base(name)
    assert "buildah pull" not in str(caught.value)
    with pytest.raises(SandboxStartError, match="buildah can't tell"):
        await provide(name)


@pytest.mark.usefixtures("docker_io")
async def test_the_command_refuses_images_without_a_recipe_before_it_makes_any(name: str) -> None:
    with pytest.raises(SystemExit, match="error: no base can be made of packages for 'alpine:3', only for debian:13, "):
        main([name, "alpine:3"])
    assert await show_image(str(base_name(name))) is None


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give buildah a store of its own, with an image ``localhost/made``; return its list of layers."""
    settings = tmp_path / "storage.conf"
    places = f'graphroot = "{tmp_path / "graph"}"\nrunroot = "{tmp_path / "run"}"\n'
    settings.write_text(f'[storage]\ndriver = "overlay"\n{places}', encoding="utf-8")
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(settings))
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n", encoding="utf-8")
    subprocess.run(["buildah", "bud", "--isolation", "chroot", "-t", "localhost/made", tmp_path], check=True)
    return tmp_path / "graph" / "overlay-layers" / "layers.json"


@pytest.mark.parametrize(("name", "is_there"), [("localhost/made", True), ("localhost/debian:none", False)])
async def test_a_killed_builds_layer_changes_nothing_about_what_the_store_has(
    name: str, is_there: bool, layers: Path
) -> None:
    before = await show_image(name)
    assert (before is not None) is is_there
    unfinished = add_unfinished(layers)
    assert await show_image(name) == before
    assert unfinished not in read(layers), "buildah saw no unfinished layer"


def add_unfinished(layers: Path) -> str:
    """Add a layer as a killed build leaves it; return its id."""
    layer = {"id": uuid.uuid4().hex * 2, "created": "2026-01-01T00:00:00Z", "flags": {"incomplete": True}}
    layers.write_text(json.dumps([*json.loads(read(layers)), layer]), encoding="utf-8")
    return str(layer["id"])


def read(layers: Path) -> str:
    return layers.read_text(encoding="utf-8")
