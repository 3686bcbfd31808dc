"""Check a task directory before anything is started on it."""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import cast

from harbor.models.task.config import StepConfig, TaskOS
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    VerifierEnvironmentMode,
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
)
from harbor.utils.env import get_required_host_vars
from pydantic import ValidationError

from harbor_gym._runtime.harbor_versions import declared_headers, mcp_headers, require_server
from harbor_gym._runtime.unchanged import UntilChanged
from harbor_gym.config import AgentEpisodeConfig, EpisodeConfig, TerminalEnvConfig, describe_problems
from harbor_gym.config.verify_paths import check_paths
from harbor_gym.episode._harbor_patches import KnownTask, known_task
from harbor_gym.errors import TaskError, TaskUnsupportedError
from harbor_gym.sandboxes import environment_config, preflight
from harbor_gym.tasks.links import require_own_files
from harbor_gym.tasks.oddities import find_oddities
from harbor_gym.tasks.receipts import require_audited

_logger = logging.getLogger(__name__)

_warned: set[str] = set()
"""The warnings that this process has logged."""

_tasks = UntilChanged[KnownTask]()


async def load_task(task_dir: Path, config: EpisodeConfig | None = None) -> KnownTask:
    """Return a Harbor task directory's task, read again only if one of its files has changed; it is not to be changed.

    Args:
        task_dir: The directory that holds ``task.toml``.
        config: How the task will be played.

    Raises:
        TaskError: Something is missing or malformed, a policy of our own loop can't do it, or the configuration's
            ``require_audit`` refuses it; the message names it.
        UsageError: ``require_audit`` is no folder of an audit.
    """
    task = await asyncio.to_thread(_tasks.get, task_dir, lambda: _load(task_dir))
    if config is not None:
        await asyncio.to_thread(require_audited, task_dir, config)
    servers = task.config.environment.mcp_servers
    is_own_loop = isinstance(config, TerminalEnvConfig)
    if is_own_loop and not config.calls_mcp_tools and any(map(declared_headers, servers)):
        name = next(server.name for server in servers if declared_headers(server))
        raise TaskUnsupportedError(
            f"{task_dir}: requests to the MCP server {name} need headers with credentials, which a policy would have "
            "to know to use it from its shell: set action_format to bash-tool, or play it with an agent (--agent)"
        )
    return task


def require_sandbox(config: EpisodeConfig) -> None:
    """Check that an episode's sandbox can start here, or that the installed Harbor can use a server. Blocks.

    Raises:
        MissingDependencyError: A package, a program or a daemon is missing.
        UsageError: A setting is missing or wrong.
    """
    if isinstance(config, AgentEpisodeConfig) and config.harbor_server is not None:
        require_server()
    else:
        preflight(environment_config(config.sandbox, options=config.sandbox_options))


def grades_in_shared_sandbox(task: Task, step: StepConfig | None = None) -> bool:
    """Return whether the verifier, of the task or of one of its steps, runs in the sandbox that the policy used."""
    mode = resolve_task_verifier_mode(task.config) if step is None else resolve_step_verifier_mode(task.config, step)
    return mode is VerifierEnvironmentMode.SHARED


def phase_users(task: Task, step: StepConfig | None = None) -> tuple[str | int | None, str | int | None]:
    """Return the users of policy and verifier, in the task or in one of its steps; None is the image's user."""
    config = task.config
    agent, verifier = config.agent.user, config.verifier.user
    if step is None:
        return agent, verifier
    return (
        agent if step.agent.user is None else step.agent.user,
        verifier if step.verifier.user is None else step.verifier.user,
    )


def phase_timeout_sec(task: Task, step: StepConfig | None = None) -> float | None:
    """Return the policy's time limit in seconds, in the task or in one of its steps; None is no limit."""
    own = None if step is None else step.agent.timeout_sec
    return task.config.agent.timeout_sec if own is None else own


def declared_verify_paths(task: Task) -> tuple[PurePosixPath, ...] | None:
    """Return ``verify_paths`` of the task's ``[metadata]``; None where it declares none.

    Raises:
        TaskError: They are not a list of paths that a view can carry.
    """
    declared: object = task.config.metadata.get("verify_paths")
    if declared is None:
        return None
    where = f"{task.task_dir / 'task.toml'}: [metadata]"
    if not isinstance(declared, list):
        raise TaskError(f"{where} verify_paths is a list of paths, got {declared!r}")
    try:
        return check_paths(cast(list[object], declared))
    except ValueError as exc:
        raise TaskError(f"{where} {exc}") from None


def sets_up(task: Task, step: StepConfig) -> bool:
    """Return whether the task copies files or runs a healthcheck in the sandbox just before a step."""
    return step.healthcheck is not None or task.paths.step_workdir_dir(step.name).exists()


def keeps_processes(task: Task) -> bool | None:
    """Return whether a task declares that what the policy started runs on during grading; None without a word."""
    declared = task.config.metadata.get("keep_agent_processes")
    return declared if isinstance(declared, bool) else None


def require_variables(task: Task, given: Mapping[str, str] | None = None) -> None:
    """Check that this process has the variables that it passes to the sandbox, the verifier and MCP servers.

    Harbor looks them up when it needs them, the verifier's after the episode.

    Args:
        task: The task.
        given: Variables of the run's own verifier settings, which replace the task's.

    Raises:
        TaskError: One is not set and has no default.
    """
    config, own = task.config, dict(given or {})
    tables = {"[environment.env]": dict(config.environment.env), "[verifier.env]": {**config.verifier.env, **own}}
    for step in config.steps or ():
        tables[f"[steps.verifier.env] of {step.name}"] = {**step.verifier.env, **own}
    for table, variables in tables.items():
        missing = [name for name, default in get_required_host_vars(variables) if default is None]
        if unset := sorted({name for name in missing if name not in os.environ}):
            raise TaskError(f"task {task.name!r} takes {', '.join(unset)} from the environment ({table}): not set here")
    for server in config.environment.mcp_servers:
        try:
            mcp_headers(server)
        except ValueError as exc:
            raise TaskError(f"task {task.name!r} has headers of the MCP server {server.name}: {exc}") from None


def test_script(task: Task, step: StepConfig | None) -> Path:
    """Return the script that grades the task, or one of its steps; it need not exist."""
    system = task.config.environment.os
    own = task.paths.discovered_step_test_path_for(step.name, system) if step is not None else None
    return own or task.paths.discovered_test_path_for(system) or task.paths.test_path


def _load(task_dir: Path) -> KnownTask:
    _check_files(task_dir)
    require_own_files(task_dir)
    try:
        task = known_task(task_dir)
    except ValidationError as exc:
        raise TaskError(
            f"{task_dir / 'task.toml'} is not a Harbor task configuration: {describe_problems(exc)}"
        ) from exc
    except (OSError, ValueError, RuntimeError) as exc:
        # tomllib's and Harbor's own errors are ValueErrors; each already states what is wrong, and where.
        raise TaskError(f"{task_dir} is not a usable Harbor task: {exc}") from exc
    _check_support(task, task_dir)
    for oddity in find_oddities(task_dir):
        if oddity not in _warned:
            _warned.add(oddity)
            _logger.warning("%s", oddity)
    return task


def _check_support(task: Task, task_dir: Path) -> None:
    """Refuse tasks that no terminal policy can play, before anything is started."""
    if task.config.environment.os is TaskOS.WINDOWS:
        raise TaskUnsupportedError(f"{task_dir}: [environment] os is windows; a terminal here is a Unix shell")
    declared_verify_paths(task)
    steps = task.config.steps
    trajectory = task.paths.step_trajectory_path(steps[0].name) if steps else task.paths.trajectory_path
    if trajectory.is_file():
        raise TaskError(
            f"{trajectory}: this task goes on from a recorded session, which a policy behind reset and step can't be "
            "given (Terminus-2 refuses it too): remove the file to start from the instruction alone"
        )


def _check_files(task_dir: Path) -> None:
    if not task_dir.is_dir():
        raise TaskError(f"task directory {task_dir} does not exist; give the folder that holds task.toml")
    if not (task_dir / "task.toml").is_file():
        raise TaskError(f"{task_dir} has no task.toml, so it is not a Harbor task directory")
    missing = [
        name
        for name, present in (
            ("environment/", (task_dir / "environment").is_dir()),
            ("instruction.md (or steps/)", (task_dir / "instruction.md").is_file() or (task_dir / "steps").is_dir()),
            ("tests/ (or steps/)", (task_dir / "tests").is_dir() or (task_dir / "steps").is_dir()),
        )
        if not present
    ]
    if missing:
        raise TaskError(f"task directory {task_dir} lacks {', '.join(missing)}; see Harbor's task format")
