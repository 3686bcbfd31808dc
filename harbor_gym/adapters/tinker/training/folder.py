"""A run's folder: its settings, and whether an existing one may be deleted or resumed."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from harbor_gym._runtime.files import replace_text, why_unreadable
from harbor_gym._runtime.json_files import read_document
from harbor_gym._runtime.shipped import is_shipped
from harbor_gym.adapters.tinker.training.config import LogDirExists, TrainConfig
from harbor_gym.config import aliases, describe_problems
from harbor_gym.errors import UsageError
from harbor_gym.transcripts import TASKS_NAME

RUN_NAME = "run.json"
RUN_FORMAT = 1
_NOT_OF_THE_RUN = ("log_path", "log_dir_exists", "server_timeout_sec", "device", "stop_on_finding")
"""Fields that do not affect the training, and may differ when a run is resumed."""

_MAY_CHANGE = (*_NOT_OF_THE_RUN, "track", "wandb_project")


@dataclass(frozen=True)
class ChangedSetting:
    """A setting that differs from the run's."""

    name: str
    """The field's dotted path."""

    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.name} {self.before}, not {self.now}"


def prepare_folder(log_path: Path, config: TrainConfig) -> None:
    """Make a run's folder, or decide what to do with an existing one. Blocks, and may ask on the terminal.

    Raises:
        UsageError: The folder exists and may not be used, is to be deleted but is not a run's, or has a run with other
            settings.
    """
    action = config.log_dir_exists
    if action is LogDirExists.ASK and log_path.exists():
        if not sys.stdin.isatty():
            raise UsageError(f"{log_path} exists; give --log-dir-exists delete, resume or raise")
        action = _ask(log_path)
    if action is LogDirExists.RAISE and log_path.exists():
        raise UsageError(f"{log_path} exists and --log-dir-exists is raise")
    if action is LogDirExists.DELETE and log_path.exists():
        _delete_run(log_path, config)
    elif (log_path / RUN_NAME).is_file():
        require_same(read_run_config(log_path), config)
        from harbor_gym.evaluation.best import read_checkpoints

        read_checkpoints(log_path, mends=True)  # so that an unreadable record raises before a server is started
    log_path.mkdir(parents=True, exist_ok=True)


def write_run_config(log_path: Path, config: TrainConfig) -> None:
    """Write every setting of a run, and the packages' versions, into its folder, whole or not at all."""
    from harbor_gym.evaluation.provenance import versions

    document = {"format": RUN_FORMAT, "config": as_written(config), "versions": versions()}
    replace_text(log_path / RUN_NAME, json.dumps(document, indent=1) + "\n")


def read_run_config(log_path: Path) -> dict[str, Any]:
    """Return the settings with which a run was started, as JSON.

    Raises:
        UsageError: The folder has no run, or one of another version.
    """
    path = log_path / RUN_NAME
    try:
        document = read_document(path, remedy="start another run")
    except (OSError, UsageError) as exc:
        remedy = "name the folder of a run (--log-path of train)"
        why = f"{path}: {why_unreadable(exc)}: {remedy}" if isinstance(exc, OSError) else exc
        raise UsageError(f"{log_path} is no run that can be resumed: {why}") from exc
    if document.get("format") != RUN_FORMAT:
        raise UsageError(f"{path} does not have the format {RUN_FORMAT} of this version")
    return cast(dict[str, Any], document["config"])


def resumed_config[Config: TrainConfig](model: type[Config], log_path: Path) -> Config:
    """Return the configuration that resumes a run.

    Raises:
        UsageError: The folder has no run, or its settings are invalid in this version.
    """
    written = {**read_run_config(log_path), "log_path": log_path, "log_dir_exists": LogDirExists.RESUME}
    try:
        return model.model_validate(written)
    except ValidationError as exc:
        raise UsageError(f"{log_path / RUN_NAME}: {describe_problems(exc)}") from exc


def require_same(before: Mapping[str, Any], config: TrainConfig) -> None:
    """Refuse to resume a run with other settings.

    Raises:
        UsageError: A setting differs; the message has all of them.
    """
    if changed := changed_settings(aliases.moved(before, aliases.TRAIN), as_written(config)):
        raise UsageError(f"the run began with other settings: {'; '.join(map(str, changed))}")


def as_written(config: TrainConfig) -> dict[str, Any]:
    """Return the settings as JSON, with absolute paths, since a run may be resumed from another directory."""
    written = config.model_dump(mode="json", exclude=set(_NOT_OF_THE_RUN))
    written["task_dirs"] = [str(path if is_shipped(path) else path.resolve()) for path in config.task_dirs]
    if config.registry_path is not None:
        written["registry_path"] = str(config.registry_path.resolve())
    if config.env.require_audit is not None:
        written["env"]["require_audit"] = str(config.env.require_audit.resolve())
    written["env"]["task_dir"] = str(config.env.task_dir.resolve())
    return written


def changed_settings(
    before: Mapping[str, Any], now: Mapping[str, Any], path: tuple[str, ...] = ()
) -> list[ChangedSetting]:
    """Return the settings that differ between two results of :func:`as_written`."""
    found: list[ChangedSetting] = []
    for name in dict.fromkeys((*before, *now)):
        if not path and name in _MAY_CHANGE:
            continue
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed_settings(cast(dict[str, Any], old), cast(dict[str, Any], new), (*path, name))
        elif old != new and (*path, name) != ("env", "task_dir"):  # the first of the tasks
            found.append(ChangedSetting(".".join((*path, name)), _shown(old), _shown(new)))
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else str(value) if isinstance(value, str | int | float) else json.dumps(value)


def _ask(log_path: Path) -> LogDirExists:
    """Ask on the terminal what to do with an existing folder.

    Raises:
        UsageError: The answer was exit.
    """
    while True:
        answer = input(f"{log_path} exists. Delete it, resume its run, or exit? [delete, resume, exit] ").strip()
        if answer in (LogDirExists.DELETE, LogDirExists.RESUME):
            return LogDirExists(answer)
        if answer == "exit":
            raise UsageError(f"{log_path} exists; nothing was started")


def _delete_run(log_path: Path, config: TrainConfig) -> None:
    if log_path.is_symlink() or not log_path.is_dir():
        raise UsageError(f"{log_path} is not a folder: --log-dir-exists delete removes runs only")
    has_run = any((log_path / name).is_file() for name in (RUN_NAME, TASKS_NAME))
    if not has_run and any(log_path.iterdir()):
        raise UsageError(
            f"{log_path} is not a training run (it has no {RUN_NAME}): --log-dir-exists delete removes runs only"
        )
    folder = log_path.resolve()
    inside = [path for path in (*config.task_dirs, Path.cwd()) if path.resolve().is_relative_to(folder)]
    if inside:
        raise UsageError(f"{log_path} holds {inside[0]}, which --log-dir-exists delete would remove with the run")
    shutil.rmtree(log_path)
