"""Nothing of the machine gets by a link into a prompt or a sandbox, with any loader of the task."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.models.trial.config import TaskConfig

from harbor_gym.adapters.harbor.sources import resolve_task_configs
from harbor_gym.cli.sif import _sif_task  # pyright: ignore[reportPrivateUsage]  # the door behind a command line
from harbor_gym.cluster.task_store import pack_task
from harbor_gym.episode.task import load_task
from harbor_gym.errors import TaskError
from harbor_gym.tasks import read_instruction
from harbor_gym.tasks.links import require_own_files
from harbor_gym.testing import write_tiny_task


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the machine, with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("of the host\n")
    return folder


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_tiny_task(tmp_path / "task")


def replace_instruction(task: Path, outside: Path) -> None:
    (task / "instruction.md").unlink()
    (task / "instruction.md").symlink_to(outside / "secret")


def replace_environment(task: Path, outside: Path) -> None:
    (task / "environment").rename(outside / "environment")
    (task / "environment").symlink_to("../outside/environment")


DOORS: dict[str, Callable[[Path], object]] = {
    "load_task": lambda task: asyncio.run(load_task(task)),
    "agents": lambda task: asyncio.run(resolve_task_configs([TaskConfig(path=task)])),
    "instructions": read_instruction,
    "sif build": lambda task: _sif_task("x", task, build_dockerfile=False),
    "nodes of a cluster": pack_task,
}


@pytest.mark.parametrize("change", [replace_instruction, replace_environment])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_links_out_of_the_task(
    door: str, change: Callable[[Path, Path], None], task: Path, outside: Path
) -> None:
    DOORS[door](task)
    change(task, outside)
    with pytest.raises(TaskError, match=rf"is a link to .*, which leads to {outside}.*outside the task directory"):
        DOORS[door](task)


def link_chain(task: Path, outside: Path) -> None:
    (task / "tests" / "first").symlink_to("second")
    (task / "tests" / "second").symlink_to(outside / "secret")


def loop(task: Path, _: Path) -> None:
    (task / "tests" / "a").symlink_to("b")
    (task / "tests" / "b").symlink_to("a")


def fifo(task: Path, _: Path) -> None:
    os.mkfifo(task / "tests" / "fifo")


def unix_socket(_: Path, __: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("tests/s")  # an absolute one may be too long


REFUSED: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a chain of links": (link_chain, "leads to .*/outside/secret, outside"),
    "dangling, outside": (lambda t, o: (t / "tests" / "x").symlink_to(o / "none"), "leads to .*/outside/none, outside"),
    "by ..": (lambda t, _: (t / "tests" / "x").symlink_to("../../outside"), "leads to .*/outside, outside"),
    "by its own name": (lambda t, _: (t / "x").symlink_to(f"../{t.name}2"), "outside the task directory"),
    "below a hidden directory": (lambda t, o: (t / ".x").mkdir() or (t / ".x" / "y").symlink_to(o), "outside the task"),
    "a loop": (loop, "leads"),
    "a link to itself": (lambda t, _: (t / "x").symlink_to("x"), "leads"),
    "a directory that holds the link": (lambda t, _: (t / "tests" / "up").symlink_to(".."), "holds the link itself"),
    "a pipe": (fifo, "neither a file nor a directory"),
    "a socket": (unix_socket, "neither a file nor a directory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, task: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words = REFUSED[name]
    monkeypatch.chdir(task)
    change(task, outside)
    with pytest.raises(TaskError, match=words):
        require_own_files(task)


async def test_links_inside_a_task_and_to_a_task_are_allowed(task: Path, tmp_path: Path) -> None:
    (task / "environment" / "absolute").symlink_to(task / "tests")
    (task / "environment" / "relative").symlink_to("../tests/test.sh")
    (task / "environment" / "dangling").symlink_to("made-by-the-build")
    (task / "environment" / "chain").symlink_to("relative")
    (tmp_path / "linked").symlink_to(task)
    (tmp_path / "linked twice").symlink_to("linked")
    for path in (task, tmp_path / "linked", tmp_path / "linked twice"):
        assert (await load_task(path)).instruction
