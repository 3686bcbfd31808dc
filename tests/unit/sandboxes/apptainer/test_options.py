"""Options of Apptainer sandboxes: the refusals and their texts, and the names of images."""

from pathlib import Path

import pytest

from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.sandboxes import environment_config, sandbox_names, takes_setup
from harbor_gym.sandboxes.apptainer.options import ApptainerOptions
from harbor_gym.sandboxes.apptainer.sif.store import own_file, reference_in, sif_key
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.images.chosen import Recipe


def test_the_name_leads_to_our_class() -> None:
    assert "apptainer" in sandbox_names()
    assert takes_setup("apptainer")
    config = environment_config("apptainer", options={"force_pull": True})
    assert config.import_path == "harbor_gym.sandboxes.apptainer.environment:ApptainerEnvironment"
    assert config.kwargs == {"force_pull": True}


def test_an_unknown_option_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UsageError, match="has no option 'image_cach_dir'; did you mean image_cache_dir"):
        environment_config("apptainer", options={"image_cach_dir": "/tmp"})


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("overlay", "disk", "should be 'auto', 'kernel' or 'fuse', got 'disk'"),
        ("registry", "docker://host/x", "does not begin with oras://"),
        ("network", "host", "should be 'task', 'none' or 'machine', got 'host'"),
        ("setup_command", " ", "must not be empty"),
    ],
)
def test_a_value_that_means_nothing_is_refused(option: str, value: object, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^sandbox option {option}: .*{reason}"):
        ApptainerOptions.taken_from({option: value})


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    return folder


def test_a_key_follows_the_content_and_not_the_place(context: Path, tmp_path: Path) -> None:
    key = sif_key(ImageSource(context))
    other = tmp_path / "other"
    other.mkdir()
    (other / "Dockerfile").write_bytes((context / "Dockerfile").read_bytes())
    assert sif_key(ImageSource(other)) == key
    (other / "Dockerfile").write_text("FROM debian:bookworm-slim\nENV A=1\n")
    assert sif_key(ImageSource(other)) != key
    named, pulled = (
        sif_key(ImageSource(context, docker_image=f"{way}debian:bookworm-slim")) for way in ("", "docker://")
    )
    assert len({key, named, pulled}) == 3


def test_a_key_follows_how_a_compose_file_builds(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM debian:bookworm-slim AS first\nARG A=1\nFROM first\n")
    (context / "Other").write_text("FROM debian:bookworm-slim\n")
    recipes = [
        None,
        Recipe(context / "Other"),
        Recipe(inline="FROM scratch\n"),
        Recipe(arguments=(("A", "2"),)),
        Recipe(target="first"),
    ]
    assert len({sif_key(ImageSource(context, recipe=recipe)) for recipe in recipes}) == len(recipes)


def test_a_tasks_own_file_lies_beside_its_dockerfile_or_where_it_is_named(context: Path) -> None:
    assert own_file(ImageSource(context, docker_image="image.sif")) == context / "image.sif"
    assert own_file(ImageSource(context, docker_image="/images/a.sif")) == Path("/images/a.sif")
    assert own_file(ImageSource(context, docker_image="oras://host/a.sif")) is None
    assert own_file(ImageSource(context)) is None


def test_an_archive_that_is_not_there_is_named(context: Path) -> None:
    with pytest.raises(SandboxStartError, match=r"no\.tar"):
        sif_key(ImageSource(context, docker_image="oci-archive:no.tar"))


def test_a_reference_in_a_registry_holds_the_key() -> None:
    assert reference_in("oras://host/path/", "0123").startswith("oras://host/path/harbor-gym:0123-")
