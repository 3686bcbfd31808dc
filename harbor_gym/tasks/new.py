"""A new task from a template."""

import re
import shutil
from enum import StrEnum
from importlib import resources
from pathlib import Path

from harbor_gym._runtime.files import StrPath, replace_text
from harbor_gym.errors import UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class TaskKind(StrEnum):
    """The kind of a new task."""

    SINGLE = "single"
    """One instruction, one verifier in the policy's sandbox."""

    STEPS = "steps"
    """Two steps, each with its instruction and reward."""

    SERVICE = "service"
    """The policy starts a service, which runs on during grading."""

    SEPARATE = "separate"
    """The verifier has a sandbox of its own."""


def write_task(folder: StrPath, kind: TaskKind = TaskKind.SINGLE, *, org: str = "example") -> Path:
    """Write a small task that can be run, checked and changed; return its folder.

    Args:
        folder: The task's directory, new or empty. Its name is the task's.
        kind: The template.
        org: The organization before the name in ``task.toml``.

    Raises:
        UsageError: The folder is not empty, or a name can't be a task's.
    """
    folder = Path(folder)
    name = folder.resolve().name
    for word in (name, org):
        if not _NAME.fullmatch(word):
            raise UsageError(
                f"{word!r} can't be a task's name: use at most 64 small letters, digits, - and _, "
                "with a letter or a digit first"
            )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; choose another name")
    try:
        _copy_template(folder, kind, org)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # a partial task would make the next attempt fail
        raise
    return folder


def _copy_template(folder: Path, kind: TaskKind, org: str) -> None:
    with resources.as_file(resources.files(__package__).joinpath("templates", kind.value)) as template:
        # An installer may have compiled the files, and need not have kept their modes.
        shutil.copytree(template, folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"), dirs_exist_ok=True)
    for script in folder.rglob("*.sh"):
        script.chmod(0o755)
    config = folder / "task.toml"
    text = (
        config.read_text(encoding="utf-8")
        .replace("@ORG@", org)
        .replace("@NAME@", folder.resolve().name.replace("_", "-"))
    )
    replace_text(config, text)
