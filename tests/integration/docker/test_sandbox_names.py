"""Sandboxes by name, and the check before anything starts."""

import os
from pathlib import Path
from typing import override

import pytest
from harbor.environments.docker.docker import DockerEnvironment as HarborDockerEnvironment
from harbor.models.environment_type import EnvironmentType
from harbor.utils.import_path import import_symbol

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.checking.doctor import examine
from harbor_gym.errors import HarborGymError, MissingDependencyError, UsageError
from harbor_gym.sandboxes import environment_config, parse_options, preflight, sandbox_names
from harbor_gym.sandboxes.local.options import LocalOptions
from harbor_gym.testing import FakeEnvironment, write_tiny_task
from tests.helpers.engines import require_engine


def test_local_is_our_own_class() -> None:
    config = environment_config("local", options={"max_processes": 9})
    assert config.import_path == "harbor_gym.sandboxes.local.environment:LocalEnvironment"
    assert config.type is None
    assert config.kwargs == {"max_processes": 9}


@pytest.mark.parametrize("kind", sorted(set(EnvironmentType) - {EnvironmentType.DOCKER}), ids=lambda kind: kind.value)
def test_every_harbor_kind_passes_by_name(kind: EnvironmentType) -> None:
    config = environment_config(kind.value, options={"x": 1})
    assert (config.type, config.import_path, config.kwargs) == (kind, None, {"x": 1})
    assert kind.value in sandbox_names()


def test_docker_is_harbors_own_with_an_owner() -> None:
    config = environment_config("docker", options={"setup_command": "true"})
    assert config.kwargs == {"setup_command": "true"}
    assert config.extra_docker_compose == []
    assert config.import_path is not None
    assert issubclass(import_symbol(config.import_path), HarborDockerEnvironment)


def test_an_import_path_passes() -> None:
    assert environment_config("some.module:Sandbox").import_path == "some.module:Sandbox"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dockr", "did you mean docker"),
        ("Daytona", "did you mean daytona"),
        ("qqqq", "known: local, "),
        ("", "known: "),
    ],
)
def test_an_unknown_name_lists_near_ones(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint) as caught:
        environment_config(name)
    assert "\n" not in str(caught.value)


def expect(kind: type[HarborGymError], name: str) -> str:
    with pytest.raises(kind) as caught:
        preflight(environment_config(name))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    monkeypatch.delenv("DAYTONA_JWT_TOKEN", raising=False)
    assert "DAYTONA_API_KEY" in expect(UsageError, "daytona")


def test_a_missing_extra_is_named_before_a_trial_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "no-real-key")
    assert 'pip install "harbor[e2b]"' in expect(MissingDependencyError, "e2b")


def test_a_program_that_harbor_does_not_look_for_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "the program singularity is not installed" in expect(MissingDependencyError, "singularity")


@pytest.mark.parametrize("path", ["no.such.module:Sandbox", "pathlib:NoSuchClass", "pathlib:Path", ":"])
def test_an_import_path_that_leads_nowhere_is_refused(path: str) -> None:
    assert path in expect(UsageError, path)


def test_docker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Docker is not installed" in expect(MissingDependencyError, "docker")


@pytest.mark.docker
def test_docker_without_a_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_engine("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert "daemon is not running" in expect(MissingDependencyError, "docker")


def test_docker_whose_socket_is_not_for_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text(
        "#!/bin/sh\necho 'permission denied while trying to connect to the Docker daemon socket' >&2\nexit 1\n"
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    said = expect(MissingDependencyError, "docker")
    assert "may not use Docker's socket: usermod --append --groups docker" in said
    assert "not running" not in said
    (found,) = (item for item in examine("docker") if item.what == "daemon")
    assert found.fix.startswith("usermod --append --groups docker")


def test_docker_without_compose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text('#!/bin/sh\n[ "$1" = info ]\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "Compose v2" in expect(MissingDependencyError, "docker")


@pytest.mark.docker
def test_docker_that_is_there_passes() -> None:
    require_engine("docker")
    preflight(environment_config("docker"))


class ByEnum(FakeEnvironment):
    """A sandbox with an enum's member as its kind, as Harbor's own sandboxes have."""

    @staticmethod
    @override
    def type() -> str:
        return EnvironmentType.DOCKER


async def test_an_episode_names_its_sandbox_as_it_was_named(tmp_path: Path) -> None:
    given = f"{__name__}:{ByEnum.__name__}"
    async with AsyncTerminalGymEnv(
        TerminalEnvConfig(task_dir=write_tiny_task(tmp_path / "task"), sandbox=given)
    ) as env:
        _, info = await env.reset()
    assert info.get("sandbox") == given


def test_options_on_a_command_line_are_json_or_text() -> None:
    texts = ["max_processes=64", "private_network=true", "network=none", "image=oci-archive:/x=y", "empty="]
    assert parse_options(texts) == {
        "max_processes": 64,
        "private_network": True,
        "network": "none",
        "image": "oci-archive:/x=y",
        "empty": "",
    }


@pytest.mark.parametrize("texts", [["network"], ["=1"], ["a b=1"], ["a=1", "a=2"]])
def test_an_option_without_a_name_or_with_two_values_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="sandbox option"):
        parse_options(texts)


@pytest.mark.parametrize("name", ["local", "docker"])
def test_an_option_that_the_sandbox_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}.*no option 'setup_comand'; did you mean setup_command"):
        environment_config(name, options={"setup_comand": "true"})
    with pytest.raises(UsageError, match=r"no option 'zzz'; its own are build_dockerfile"):
        environment_config(name, options={"zzz": 1})
    assert environment_config(name, options={"setup_command": "true"}).kwargs == {"setup_command": "true"}


def test_an_image_and_a_dockerfile_to_build_are_refused_together() -> None:
    with pytest.raises(UsageError, match="build_dockerfile"):
        LocalOptions.taken_from({"image": "debian", "build_dockerfile": True})
