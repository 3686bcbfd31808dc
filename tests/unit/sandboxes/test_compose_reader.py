"""What stands before a task's Compose file can be read."""

from pathlib import Path

import pytest

from harbor_gym.errors import MissingDependencyError, TaskUnsupportedError
from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.compose import reader
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import make

_PROGRAM = "#!/bin/sh\necho {}\n"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let Compose be looked for in a folder that is empty."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(reader, "_PLUGIN_FOLDERS", (str(tmp_path / "plugins"),))

    def find(name: str) -> str:
        return str(tmp_path / name)

    monkeypatch.setattr(reader, "find_program", find)
    monkeypatch.setattr(reader, "compose_program", reader.compose_program.__wrapped__)


def test_a_missing_program_is_an_error_that_says_how_to_get_it() -> None:
    with pytest.raises(MissingDependencyError, match=r"Compose 2.*apt-get install .*docker-compose.*or --env docker"):
        reader.require_compose()


@pytest.mark.parametrize(
    ("version", "is_found"), [("1.29.2", False), ("2.26.1-4", True), ("v2.40.3", True), ("", False)]
)
def test_the_first_compose_was_another_program(version: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "docker-compose").write_text(_PROGRAM.format(version))
    (tmp_path / "docker-compose").chmod(0o755)
    assert (reader.compose_program() is not None) is is_found


def test_a_plugin_runs_by_itself(tmp_path: Path) -> None:
    plugin = tmp_path / "plugins/docker-compose"
    plugin.parent.mkdir()
    plugin.write_text(_PROGRAM.format("2.26.1"))
    plugin.chmod(0o755)
    assert reader.require_compose() == str(plugin)


@pytest.fixture
def composed(tmp_path: Path) -> Path:
    """A folder of a task with a Compose file."""
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/docker-compose.yaml").write_text("services: {}\n")
    return tmp_path


NOT_SUPPORTED: list[tuple[type[LocalEnvironment | ApptainerEnvironment], dict[str, object], str]] = [
    (LocalEnvironment, {"network": "machine"}, "local sandboxes .* network='machine' .* set it to 'task'"),
    (LocalEnvironment, {"forkable": True}, "forkable"),
    (ApptainerEnvironment, {}, "apptainer sandboxes .* network='machine' .* set it to 'task'"),
]


@pytest.mark.parametrize(("kind", "options", "says"), NOT_SUPPORTED)
def test_options_that_services_do_not_allow_are_refused_by_name(
    kind: type[LocalEnvironment | ApptainerEnvironment], options: dict[str, object], says: str, composed: Path
) -> None:
    with pytest.raises(TaskUnsupportedError, match=says):
        make(kind, composed, None, **options)
    assert make(kind, composed, None, network="task").capabilities.docker_compose
