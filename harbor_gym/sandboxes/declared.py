"""Check a task's declarations that a sandbox may not fulfil: a working directory, a user, a mount."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection

from harbor.environments.base import BaseEnvironment
from harbor.models.trial.config import ServiceVolumeConfig
from harbor.models.trial.paths import TrialPaths

from harbor_gym._runtime import rootless
from harbor_gym._runtime.shell_text import QUIET, Marked
from harbor_gym.sandboxes.errors import SandboxError, SandboxLostError, SandboxTimeoutError, TaskError

_ORDINARY_IDS = 1 << 16
"""Every sandbox has these."""
_MISSING = 3
_SHOWN_IDS = 3
_IDS_OF = (
    "found=; while IFS=: read -r name _ id group _; do "
    'if [ "$name" = {user} ] || [ "$id" = {user} ]; then found=$name; echo "$id $group"; break; fi; done </etc/passwd; '
    "while IFS=: read -r name _ id members; do "
    'case "$name:,$members," in {group}:*|*,"$found",*) echo "$id";; esac; done </etc/group; '
    f'[ -n "$found" ] || exit {_MISSING}'
)
"""Prints the ids of an account and of its groups."""


def is_trials_own(mount: ServiceVolumeConfig, paths: TrialPaths) -> bool:
    """Return whether a mount is one of Harbor's log folders, which lie in the trial's directory, and not the user's."""
    if mount["type"] != "bind":
        return False
    source, trial = os.path.realpath(mount["source"]), os.path.realpath(paths.trial_dir)  # pathlib takes thrice as long
    return source == trial or source.startswith(f"{trial}/")


async def require_workdir(environment: BaseEnvironment) -> None:
    """Check that the running sandbox has the task's working directory. No command is run if the task names none.

    Raises:
        TaskError: It does not exist.
    """
    workdir = environment.task_env_config.workdir
    if workdir is None:
        return
    found = await environment.exec(workdir_check(workdir), cwd="/", user="root")
    require_check(workdir, found.return_code)


def workdir_check(workdir: str) -> str:
    """Return shell text whose exit status :func:`require_check` takes."""
    return f"[ -d {shlex.quote(workdir)} ] || exit {_MISSING}"


def require_check(workdir: str, status: int) -> None:
    """Check the exit status of :func:`workdir_check`.

    Raises:
        TaskError: The working directory does not exist.
    """
    if status == _MISSING:
        raise TaskError(
            f"task.toml: [environment] workdir = {workdir!r} is no directory of the task's image: make it in the "
            "Dockerfile (WORKDIR), or change the setting"
        )


async def require_user(environment: BaseEnvironment, user: str | int | None) -> None:
    """Check that the running sandbox has an account of this name, or this id, and the ids of its groups.

    No command is run for root.

    Raises:
        TaskError: One is missing.
    """
    name, _, group = ("" if user is None else str(user)).partition(":")
    if not name or (name == "root" and not group):
        return
    script = Marked(_IDS_OF.format(user=shlex.quote(name), group=shlex.quote(group)))
    found = await environment.exec(script.command, cwd="/", env=QUIET, user="root")
    if found.return_code == _MISSING and not name.isdecimal():
        raise TaskError(
            f"task.toml: [agent] user = {name!r} has no account in the task's image: make one in the Dockerfile "
            "(RUN useradd), or change the setting"
        )
    ids = [int(word) for word in (name, group, *script.output(found.stdout or "").split()) if word.isdecimal()]
    if max(ids, default=0) >= _ORDINARY_IDS:
        await require_able(environment, str(user), f"task.toml: [agent] user = {str(user)!r}")


def no_account(user: str, problem: str) -> TaskError:
    """Return the error of an image whose USER has no account in it; ``problem`` is a sandbox's message."""
    return TaskError(
        f"USER {user} has no account in the task's image ({problem}): make one in the Dockerfile (RUN useradd), or "
        "change the instruction"
    )


def require_room(ids: Collection[int], count: int, room: int, sandbox: str) -> None:
    """Check that a sandbox has the ids of an image.

    Args:
        ids: The ids of its files, root and USER that are not below ``count``, each once.
        count: The sandbox has all ids below it.
        room: The number of further ids that it can have.
        sandbox: The kind of sandbox, for the message.

    Raises:
        TaskError: There are too many.
    """
    if len(ids) > room:
        shown = ", ".join([*map(str, sorted(ids)[:_SHOWN_IDS]), *(["…"] if len(ids) > _SHOWN_IDS else [])])
        raise TaskError(
            f"the image has {len(ids)} user or group ids above {count - 1} ({shown}), {sandbox} on this "
            f"machine has room for {room} of them: give its files and users lower ids (tar --no-same-owner, useradd "
            f"--uid){rootless.more_ids_hint()}, or use --env docker"
        )


async def require_able(environment: BaseEnvironment, user: str, setting: str) -> None:
    """Check that the running sandbox can run commands as a user.

    Args:
        environment: The sandbox.
        user: Name or uid; a group may follow after a colon.
        setting: The setting that names the user.

    Raises:
        TaskError: It can't: it has no such account, or lacks one of the ids.
    """
    try:
        found = await environment.exec("exit 0", cwd="/", user=user)
    except (SandboxLostError, SandboxTimeoutError):
        raise
    except SandboxError as exc:
        problem = str(exc)
    else:
        if found.return_code == 0:
            return
        problem = f"{found.stdout or ''}{found.stderr or ''}".strip()
    raise TaskError(
        f"{setting} can't run anything in this sandbox ({problem}): use lower ids{rootless.more_ids_hint()}, "
        "or --env docker"
    )
