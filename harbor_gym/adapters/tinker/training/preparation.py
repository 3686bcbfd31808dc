"""Prepare a run: fetch its tasks, check its settings, and make its folder."""

import asyncio
import contextlib
import json
import os
from collections.abc import Generator, Sequence
from datetime import datetime
from pathlib import Path

from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym._runtime.files import naming, one_run_at_a_time
from harbor_gym._runtime.json_files import read_document
from harbor_gym._runtime.shipped import folder_digest, resolve_shipped
from harbor_gym.adapters.tinker.shaping import find_make_env, find_trajectory_reward
from harbor_gym.adapters.tinker.training.config import Backend, TrainConfig
from harbor_gym.adapters.tinker.training.folder import prepare_folder, write_run_config
from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.cluster.workers import require_shared_rate
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.config.snapshot import read_start
from harbor_gym.episode.replay import require_start
from harbor_gym.errors import UsageError
from harbor_gym.samplers.endpoints import require_endpoint
from harbor_gym.starts import Starts
from harbor_gym.tasks import filter_tasks, resolve_tasks, split_tasks
from harbor_gym.tasks.receipts import playable_tasks
from harbor_gym.transcripts import TASKS_NAME

TASKS_FORMAT = 1


async def prepare(config: TrainConfig) -> TrainRun:
    """Fetch the tasks and check the settings, before anything is started or written.

    Raises:
        UsageError: Settings exclude one another, or one is missing (such as an API key).
        TaskError: A task can't be fetched or read.
        MissingDependencyError: The sandbox needs a program or package that is not installed.
    """
    from harbor_gym.episode.task import load_task, require_sandbox

    sources: Sequence[str | Path] = [*config.task_dirs, *config.tasks] or [config.env.task_dir]
    tasks = filter_tasks(await resolve_tasks(sources, registry_path=config.registry_path), config.where)
    tasks = playable_tasks(tasks, config.env)
    train_tasks, test_tasks = split_tasks(
        tasks, test_fraction=config.test_fraction, test_tasks=config.test_tasks, seed=config.seed
    )
    run = TrainRun(
        config=config,
        env=config.env.model_copy(update={"task_dir": train_tasks[0].path}),
        tasks=tuple(tasks),
        test_tasks=tuple(task.name for task in test_tasks),
        log_path=(config.log_path or default_log_path(config)).resolve(),
    )
    for task in run.tasks:
        await load_task(task.path, run.env)
    if isinstance(run.env, TerminalEnvConfig):
        await asyncio.to_thread(_require_starts, run.env, [task.path for task in run.train_tasks])
    if len(run.train_tasks) > 1 and config.remove_constant_groups and config.max_steps_off_policy is None:
        # The cookbook's loop would report the remaining groups' metrics under the wrong tasks.
        raise UsageError("--remove-constant-groups with several tasks needs --max-steps-off-policy (0 will do)")
    if len(run.train_tasks) > 1 and config.rollout_executor is not None and config.warm_sandboxes:
        raise UsageError("--warm-sandboxes with --rollout-executor need a single task: no worker knows its next one")
    find_make_env(config.make_env)
    find_trajectory_reward(config.trajectory_reward)
    require_shared_rate(config.rollout_executor, config.rollout_starts_per_sec)
    if config.epochs is not None or config.task_weights:
        run.count_batches()
    await asyncio.to_thread(require_sandbox, run.env)
    await _require_policy(config)
    return run


def _require_starts(env: TerminalEnvConfig, tasks: Sequence[Path]) -> None:
    """Check that an episode of each task can begin where the configuration says."""
    starts = Starts.read(env, in_tokens=True)
    start = read_start(env) if starts is None else None
    for task in tasks:
        config = env.model_copy(update={"task_dir": task})
        if starts is not None:
            starts.draw(config, "")
        elif start is not None:
            require_start(start, config, folder_digest(task))


async def _require_policy(config: TrainConfig) -> None:
    """Check the model, its service and the agent that asks it."""
    is_local, name = config.backend is Backend.LOCAL, config.model_name
    if isinstance(config.env, AgentEpisodeConfig):
        from harbor_gym.adapters.harbor.agents import require_agent, require_terminus_json

        agent = require_agent(config.env)
        if is_local and name is None:
            require_terminus_json(agent)
    if config.base_url is not None:
        await require_endpoint(config.base_url)
    elif not is_local and not os.environ.get("TINKER_API_KEY"):
        raise UsageError("TINKER_API_KEY is not set; set it, or train on this machine with --backend local")
    if name is None or is_local:
        return  # whoever starts the server here checks its model
    from harbor_gym.adapters.tinker.sampling import codec_for

    await asyncio.to_thread(codec_for, config.renderer_name, name)


def default_log_path(config: TrainConfig) -> Path:
    """Return the default folder of a run, named by its first task directory and the time."""
    if config.task_dirs:
        name = resolve_shipped(config.task_dirs[0]).resolve().name
    else:
        name = "tasks" if config.tasks else config.env.task_dir.resolve().name
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


@contextlib.contextmanager
def claimed_folder(run: TrainRun) -> Generator[None]:
    """Make the run's folder, write ``run.json`` (its settings) and ``tasks.json`` (its tasks), and lock it.

    No other run can use the folder during the block. Blocks; asks on the terminal if the folder exists and
    ``log_dir_exists`` is ``ask``.

    Raises:
        UsageError: The folder can't be written, exists and may not be used, or has a run with other settings or tasks.
    """
    try:
        with naming(run.log_path), one_run_at_a_time(run.log_path, flag="--log-path"):
            _claim(run)
    except OSError as exc:
        why = describe_disk_failure(exc) or str(exc)
        raise UsageError(f"{run.log_path} can't be the run's folder: {why}") from exc
    with one_run_at_a_time(run.log_path, flag="--log-path"):
        yield


def _claim(run: TrainRun) -> None:
    prepare_folder(run.log_path, run.config)
    path = run.log_path / TASKS_NAME
    if path.is_file():
        before = read_document(path, remedy="remove it if the tasks are those that the run began with")
        then = {f"{row.get('name')} {row.get('digest')}" for row in before.get("tasks", [])}
        now = {f"{task.name} {task.digest}" for task in run.tasks}
        if then != now:
            raise UsageError(f"{path}: the run began with other tasks, differing in {', '.join(sorted(then ^ now))}")
    rows = [
        {"name": task.name, "source": task.source, "commit": task.commit, "digest": task.digest, "path": str(task.path)}
        for task in run.tasks
    ]
    document = {"format": TASKS_FORMAT, "tasks": rows, "test_tasks": run.test_tasks}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    write_run_config(run.log_path, run.config)
