"""What a task declares of its image, and the image may lack: a working directory, a user."""

from __future__ import annotations

import shlex

from harbor.environments.base import BaseEnvironment

from harbor_gym.errors import TaskError

_HAS_USER = 'while IFS=: read -r name _; do [ "$name" != {user} ] || exit 0; done </etc/passwd; exit 3'


async def require_workdir(environment: BaseEnvironment) -> None:
    """Check that the running sandbox has the task's working directory. No command is run where the task names none.

    Raises:
        TaskError: It has not.
    """
    workdir = environment.task_env_config.workdir
    if workdir is None:
        return
    found = await environment.exec(f"[ -d {shlex.quote(workdir)} ] || exit 3", cwd="/", user="root")
    if found.return_code == 3:
        raise TaskError(
            f"task.toml: [environment] workdir = {workdir!r} is no directory of the task's image: make it in the "
            "Dockerfile (WORKDIR), or change the setting"
        )


async def require_user(environment: BaseEnvironment, user: str | int | None) -> None:
    """Check that the running sandbox has an account of this name. No command is run for ids, and for none.

    Raises:
        TaskError: It has not.
    """
    name = "" if user is None else str(user).partition(":")[0]
    if not name or name.isdecimal() or name == "root":
        return
    found = await environment.exec(_HAS_USER.format(user=shlex.quote(name)), cwd="/", user="root")
    if found.return_code == 3:
        raise TaskError(
            f"task.toml: [agent] user = {name!r} has no account in the task's image: make one in the Dockerfile "
            "(RUN useradd), or change the setting"
        )
