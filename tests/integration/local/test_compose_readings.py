"""Compose is asked again whenever its answer may differ."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.sandboxes.compose import reader

pytestmark = pytest.mark.compose

NO_ENV: Mapping[str, str] = {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the projects that Compose itself was asked for, so far."""
    names: list[str] = []
    ask = reader._ask_compose  # pyright: ignore[reportPrivateUsage]  # it goes on as before

    async def noting(*args: Any, **options: Any) -> str:
        names.append(options["name"])
        return await ask(*args, **options)

    monkeypatch.setattr(reader, "_ask_compose", noting)
    monkeypatch.setattr(reader, "_known", {})
    return names


async def read(context: Path, *, name: str = "p", env: Mapping[str, str] = NO_ENV, overlay: str = "") -> Any:
    document = await reader.read_document(
        [context / "docker-compose.yaml"],
        {"more.json": {"services": {"main": {"labels": {"overlay": overlay}}}}},
        context=context,
        name=name,
        environment=env,
    )
    return document["services"]["main"]


FILE = "services: {main: {image: i, hostname: '${A-unset}', environment: [B], working_dir: /ONE}}\n"


async def test_the_same_files_and_variables_are_read_once(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "docker-compose.yaml").write_text(FILE)
    first = await read(tmp_path, name="one")
    first["working_dir"] = "/changed by its holder"
    second = await read(tmp_path, name="two", env={"ELSEWHERE": "x"})
    assert second["working_dir"] == "/ONE"
    assert asked == ["one"]


async def test_what_changes_is_seen(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "docker-compose.yaml"
    file.write_text(FILE)
    assert (await read(tmp_path))["hostname"] == "unset"
    assert (await read(tmp_path, env={"A": "given"}))["hostname"] == "given"
    assert (await read(tmp_path, env={"B": "passed"}))["environment"] == {"B": "passed"}
    assert (await read(tmp_path, overlay="other"))["labels"] == {"overlay": "other"}
    (tmp_path / ".env").write_text("A=default\n")
    assert (await read(tmp_path))["hostname"] == "default"
    monkeypatch.setenv("A", "of-this-process")
    assert (await read(tmp_path))["hostname"] == "of-this-process"
    state = file.stat()
    file.write_text(FILE.replace("ONE", "TWO"))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (await read(tmp_path))["working_dir"] == "/TWO"
    file.write_text(FILE.replace("image: i", "image: '${COMPOSE_PROJECT_NAME}'"))
    assert [(await read(tmp_path, name=name))["image"] for name in ("one", "two")] == ["one", "two"]
    assert len(asked) == 9


async def test_a_file_that_names_others_is_read_each_time(tmp_path: Path, asked: list[str]) -> None:
    further = {
        "env_file: more.env": ("more.env", "FROM=%s\n"),
        "extends: {file: other.yaml, service: base}": ("other.yaml", "services: {base: {environment: {FROM: %s}}}\n"),
        '"ext\\x65nds": {file: other.yaml, service: base}': (
            "other.yaml",
            "services: {base: {environment: {FROM: %s}}}\n",
        ),
    }
    for key, (name, text) in further.items():
        (tmp_path / "docker-compose.yaml").write_text(f"services: {{main: {{image: i, {key}}}}}\n")
        for value in ("one", "two"):
            (tmp_path / name).write_text(text % value)
            assert (await read(tmp_path))["environment"] == {"FROM": value}
    assert len(asked) == 6
