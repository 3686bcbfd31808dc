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
from harbor_gym.adapters.tinker.branch import Branch
from harbor_gym.adapters.tinker.shaping import find_make_env, find_trajectory_reward
from harbor_gym.adapters.tinker.training.config import OBSERVATION_LOSSES, Backend, TrainConfig
from harbor_gym.adapters.tinker.training.folder import settle_folder, write_run_config
from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.cluster.workers import require_shared_rate
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.config.snapshot import read_start
from harbor_gym.episode.replay import require_start
from harbor_gym.errors import UsageError
from harbor_gym.samplers.endpoints import require_endpoint
from harbor_gym.tasks import filter_tasks, resolve_tasks, split_tasks

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
    await asyncio.to_thread(_check_start, run)
    _check_rollouts(run)
    if config.epochs is not None or config.task_weights:
        run.count_batches()
    await asyncio.to_thread(require_sandbox, run.env)
    _check_service(config)
    if config.base_url is not None:
        await require_endpoint(config.base_url)
    if config.model_name is not None:
        await asyncio.to_thread(_check_model, config, config.model_name)
    return run


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
    settle_folder(run.log_path, run.config)
    path = run.log_path / "tasks.json"
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


def _check_rollouts(run: TrainRun) -> None:
    """Refuse settings with which the cookbook would fail, or compute wrong results, in the middle of a run."""
    config = run.config
    if (config.num_batches is None) == (config.epochs is None):
        raise UsageError("give either --epochs or --num-batches")
    weights = config.load_checkpoint_path
    if weights is not None and not weights.startswith("tinker://"):
        raise UsageError(
            f"--load-checkpoint-path {weights} is no address of weights: give the state_path of a line in a run's "
            "checkpoints.jsonl, which begins with tinker://"
        )
    if config.rollout_executor is not None and config.warm_sandboxes and len(run.train_tasks) > 1:
        raise UsageError("--warm-sandboxes with --rollout-executor need a single task: no worker knows its next one")
    find_make_env(config.make_env)
    find_trajectory_reward(config.trajectory_reward)
    require_shared_rate(config.rollout_executor, config.rollout_starts_per_sec)
    if isinstance(config.env, AgentEpisodeConfig):
        _check_agent(config, config.env)
    if config.branch is not None:
        Branch.parse(config.branch).require_fit(config.group_size)
        if config.stragglers.is_active:
            raise UsageError("--branch waits for episodes to copy them: it excludes --over-sample and --batch-deadline")
    parts = config.stream_minibatches
    if parts is not None and config.groups_per_batch % parts:
        raise UsageError(
            f"--groups-per-batch {config.groups_per_batch} can't be divided in {parts} --stream-minibatches"
        )
    if config.observation_loss_weight:
        if parts is not None:
            raise UsageError("--observation-loss-weight needs a whole batch: it excludes --stream-minibatches")
        if config.loss_fn not in OBSERVATION_LOSSES:
            raise UsageError(
                f"--observation-loss-weight needs a --loss-fn of each token ({', '.join(OBSERVATION_LOSSES)}), not "
                f"{config.loss_fn}"
            )
    if not config.remove_constant_groups or config.max_steps_off_policy is not None:
        return
    if parts is not None:
        raise UsageError("--remove-constant-groups and --stream-minibatches: a batch without a mixed group would fail")
    if len(run.train_tasks) > 1:
        # The cookbook's loop would report the remaining groups' metrics under the wrong tasks.
        raise UsageError("--remove-constant-groups with several tasks needs --max-steps-off-policy (0 will do)")


def _check_start(run: TrainRun) -> None:
    own = run.env
    if isinstance(own, TerminalEnvConfig) and (snapshot := read_start(own.start_from)) is not None:
        for task in run.train_tasks:
            env = own.model_copy(update={"task_dir": task.path})
            require_start(snapshot, env, folder_digest(task.path))


def _check_agent(config: TrainConfig, env: AgentEpisodeConfig) -> None:
    from harbor_gym.adapters.harbor.agents import require_agent, require_terminus_json

    agent = require_agent(env)
    if config.backend is Backend.LOCAL and config.model_name is None:
        require_terminus_json(agent)
    if config.branch is not None:
        raise UsageError("--agent plays an episode that can't be copied: --branch belongs to our own loop")
    if config.make_env is not None:
        raise UsageError("--agent plays in sandboxes that Harbor starts: --make-env belongs to our own loop")
    if config.warm_sandboxes:
        raise UsageError("--agent plays in sandboxes that Harbor starts, and takes no --warm-sandboxes")


def _check_model(config: TrainConfig, model_name: str) -> None:
    from harbor_gym.adapters.tinker.sampling import codec_for

    if config.backend is Backend.LOCAL and not (Path(model_name) / "config.json").is_file():
        raise UsageError(f"--backend local serves a model's directory, and {model_name} has no config.json")
    codec_for(config.renderer_name, model_name)


def _check_service(config: TrainConfig) -> None:
    is_local = config.backend is Backend.LOCAL
    if is_local and config.base_url is not None:
        raise UsageError("--backend local starts its own server; --base-url belongs to --backend tinker")
    if not is_local and config.model_name is None:
        raise UsageError("--backend tinker needs a --model-name")
    if not is_local and config.base_url is None and not os.environ.get("TINKER_API_KEY"):
        raise UsageError("TINKER_API_KEY is not set; set it, or train on this machine with --backend local")
