"""Train a policy on Harbor tasks, one or many, with tinker-cookbook's RL loop.

The same loop runs against the Tinker service (``--backend tinker``) and against the embedded server on this machine
(``--backend local``); only the address differs.

    python recipes/train.py --task-dir tasks/devops_task --env daytona --model-name Qwen/Qwen3-30B-A3B-Instruct-2507 \
        --renderer-name qwen3 --max-tokens 4096 --temperature 0.7 --groups-per-batch 1 --group-size 8 \
        --num-batches 25 --learning-rate 4e-5 --lora-rank 32 --save-every 10 --log-path ./runs/x

    python recipes/train.py --task-dir tasks --where difficulty=easy --test-fraction 0.25 --eval-every 5 \
        --groups-per-batch 4 --epochs 3 --env docker
"""

import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import sys
import warnings
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym import TerminalEnvConfig, report, sandboxes
from harbor_gym._runtime.exits import run_and_exit
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskError, UsageError
from harbor_gym.evaluation import read_best, read_evaluations
from harbor_gym.tasks import SourcedTask, filter_tasks, resolve_tasks, split_tasks
from harbor_gym.verify_paths import parse_verify_paths

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tinker_cookbook.rl.train import Config

    from harbor_gym.adapters.tinker import HarborEvaluator, HarborRLDatasetBuilder, RetryThenMask


class Backend(StrEnum):
    """Where tokens are sampled and gradients are taken."""

    TINKER = "tinker"
    LOCAL = "local"


class RolloutExecutor(StrEnum):
    """Where groups are played."""

    PROCESS = "process"
    RAY = "ray"


class LogDirExists(StrEnum):
    """What to do with a log path that is there already."""

    ASK = "ask"
    DELETE = "delete"
    RESUME = "resume"
    RAISE = "raise"


@dataclass(frozen=True)
class Defaults:
    """What a flag means when it is not given; it differs by backend."""

    model_name: str | None
    renderer_name: str
    max_tokens: int
    max_context_tokens: int
    temperature: float
    num_batches: int
    learning_rate: float
    max_turns: int


DEFAULTS = {
    Backend.TINKER: Defaults(
        model_name="Qwen/Qwen3-30B-A3B-Instruct-2507",
        renderer_name="qwen3_instruct",
        max_tokens=4096,
        max_context_tokens=32_768,
        temperature=1.0,
        num_batches=25,
        learning_rate=4e-5,
        max_turns=30,
    ),
    # A policy of two million parameters, built on first use; None is that policy.
    Backend.LOCAL: Defaults(
        model_name=None,
        renderer_name="qwen3_instruct",
        max_tokens=64,
        max_context_tokens=4096,
        temperature=1.0,
        num_batches=5,
        learning_rate=1e-3,
        max_turns=10,
    ),
}

FAULT_POLL_SEC = 1.0
START_TTL_SEC = 86_400
"""How long the service keeps the weights that a run starts from: a run without a checkpoint makes them again."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

WHAT, HOW, ROLLOUTS, WHERE = "What to train on", "How to train", "Rollouts", "Where and what to keep"


def option(help: str, panel: str, *, min: int | None = None) -> typer.models.OptionInfo:
    """Declare one flag."""
    return typer.Option(help=help, rich_help_panel=panel, min=min)


@app.command(help="Train a policy on Harbor tasks. Flags without a default take the backend's own.")
def main(
    task_dir: Annotated[list[Path] | None, option("Task directory, or a directory of tasks; repeatable.", WHAT)] = None,
    task: Annotated[list[str] | None, option("git+URL@COMMIT#path, org/name@ref, or a path; repeatable.", WHAT)] = None,
    registry_path: Annotated[Path | None, option("registry.json to look names up in.", WHAT)] = None,
    where: Annotated[list[str] | None, option("Tasks with difficulty=easy, keywords!=vim …; repeatable.", WHAT)] = None,
    task_weight: Annotated[list[str] | None, option("NAME=2 comes twice in an epoch; repeatable.", WHAT)] = None,
    test_task: Annotated[list[str] | None, option("Name of a task to test on only; repeatable.", WHAT)] = None,
    test_fraction: Annotated[float, option("Share of the tasks to test on only, drawn by --seed.", WHAT)] = 0.0,
    env: Annotated[str, option("Sandbox: local, docker, daytona, any Harbor type, or module:Class.", WHAT)] = "docker",
    sandbox_option: Annotated[list[str] | None, option("NAME=VALUE for it; repeatable.", WHAT)] = None,
    verify_paths: Annotated[str, option("Pristine view: auto, off, or paths with commas between.", WHAT)] = "auto",
    max_turns: Annotated[int | None, option("Turns after which an episode is cut and verified.", WHAT)] = None,
    backend: Annotated[Backend, option("The Tinker service, or a server on this machine.", HOW)] = Backend.TINKER,
    base_url: Annotated[str | None, option("Address of a Tinker-compatible server.", HOW)] = None,
    model_name: Annotated[str | None, option("Base model: a name, or a directory for --backend local.", HOW)] = None,
    renderer_name: Annotated[str | None, option("tinker-cookbook renderer.", HOW)] = None,
    max_tokens: Annotated[int | None, option("Tokens in one sampled message, at most.", HOW)] = None,
    max_context_tokens: Annotated[int | None, option("Context window in tokens.", HOW)] = None,
    temperature: Annotated[float | None, option("Sampling temperature.", HOW)] = None,
    groups_per_batch: Annotated[int, option("Groups in a batch.", HOW)] = 1,
    group_size: Annotated[int, option("Episodes in a group; rewards are centred in it.", HOW)] = 8,
    warm_sandboxes: Annotated[int, option("Sandboxes kept ready for the next batch; 0 keeps none.", HOW)] = 0,
    num_batches: Annotated[int | None, option("Batches to train.", HOW)] = None,
    epochs: Annotated[int | None, option("Passes over the tasks, instead of --num-batches.", HOW, min=1)] = None,
    learning_rate: Annotated[float | None, option("Adam's learning rate.", HOW)] = None,
    lora_rank: Annotated[int, option("Rank of the LoRA adapter.", HOW)] = 32,
    loss_fn: Annotated[str, option("importance_sampling, ppo, cispo, …", HOW)] = "importance_sampling",
    kl_penalty_coef: Annotated[float, option("Weight of the KL penalty against the base model; 0 is none.", HOW)] = 0.0,
    load_checkpoint_path: Annotated[str | None, option("Start from these weights (tinker://…).", HOW)] = None,
    seed: Annotated[int, option("Seeds the tasks' order, the embedded policy, the adapter and sampling.", HOW)] = 0,
    max_rollout_retries: Annotated[int, option("Lost episodes that a group runs again.", ROLLOUTS, min=0)] = 3,
    remove_constant_groups: Annotated[
        bool, option("Leave groups of one reward out of the step, and of its metrics.", ROLLOUTS)
    ] = False,
    zero_reward_on_limit: Annotated[
        bool, option("Give episodes that a budget cut short, not the policy ended, no reward above 0.", ROLLOUTS)
    ] = False,
    max_steps_off_policy: Annotated[
        int | None, option("Sample while training; drop groups older than so many steps.", ROLLOUTS, min=0)
    ] = None,
    stream_minibatches: Annotated[
        int | None, option("Train on a batch in so many parts, each when it is there.", ROLLOUTS, min=1)
    ] = None,
    rollout_executor: Annotated[
        RolloutExecutor | None, option("Play groups in other processes: of this machine, or Ray's.", ROLLOUTS)
    ] = None,
    rollout_workers: Annotated[int, option("Those processes; each plays a group at a time.", ROLLOUTS, min=1)] = 2,
    log_path: Annotated[Path | None, option("Folder of the run.  [default: runs/TASK-TIME]", WHERE)] = None,
    log_dir_exists: Annotated[LogDirExists, option("If that folder exists.", WHERE)] = LogDirExists.ASK,
    save_every: Annotated[int, option("Batches between checkpoints; 0 keeps only the last.", WHERE)] = 10,
    eval_every: Annotated[
        int, option("Batches between evaluations, with a checkpoint and best.json; 0 is never.", WHERE)
    ] = 0,
    eval_temperature: Annotated[float, option("Sampling temperature of evaluations; 0 is greedy.", WHERE)] = 0.0,
    test_episodes: Annotated[
        int | None, option("Episodes of each test task.  [default: a group of one task, 1 of several]", WHERE, min=1)
    ] = None,
    wandb_project: Annotated[str | None, option("Log to this Weights & Biases project too.", WHERE)] = None,
) -> None:
    """Resolve the flags, check everything that can be checked, then train."""
    # Read when tqdm is imported: the cookbook's progress bars would break up our lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    defaults = DEFAULTS[backend]
    sources = [*(task_dir or ()), *(task or ())]
    name = task_dir[0].resolve().name if task_dir else "tasks"
    log_path = (log_path or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}").resolve()
    try:
        tasks = asyncio.run(find_tasks(sources, registry_path, where or ()))
        train_tasks, test_tasks = split_tasks(tasks, test_fraction=test_fraction, test_tasks=test_task or (), seed=seed)
        several = len(test_tasks or train_tasks) > 1
        run = Run(
            env=TerminalEnvConfig(
                task_dir=train_tasks[0].path,
                sandbox=env,
                sandbox_options=sandboxes.parse_options(sandbox_option or ()),
                verify_paths=parse_verify_paths(verify_paths),
                max_turns=max_turns or defaults.max_turns,
            ),
            tasks=tuple(tasks),
            test_tasks=tuple(item.name for item in test_tasks),
            task_weights=parse_weights(task_weight or ()),
            backend=backend,
            base_url=base_url,
            model_name=model_name or defaults.model_name,
            renderer_name=renderer_name or defaults.renderer_name,
            max_tokens=max_tokens or defaults.max_tokens,
            max_context_tokens=max_context_tokens or defaults.max_context_tokens,
            temperature=defaults.temperature if temperature is None else temperature,
            groups_per_batch=groups_per_batch,
            group_size=group_size,
            warm_sandboxes=warm_sandboxes,
            num_batches=num_batches if num_batches or epochs else defaults.num_batches,
            epochs=epochs,
            learning_rate=learning_rate or defaults.learning_rate,
            lora_rank=lora_rank,
            loss_fn=loss_fn,
            kl_penalty_coef=kl_penalty_coef,
            load_checkpoint_path=load_checkpoint_path,
            seed=seed,
            max_rollout_retries=max_rollout_retries,
            remove_constant_groups=remove_constant_groups,
            zero_reward_on_limit=zero_reward_on_limit,
            max_steps_off_policy=max_steps_off_policy,
            stream_minibatches=stream_minibatches,
            rollout_executor=rollout_executor,
            rollout_workers=rollout_workers,
            log_path=log_path,
            save_every=save_every,
            eval_every=eval_every,
            eval_temperature=eval_temperature,
            test_episodes=test_episodes or (1 if several else group_size),
            wandb_project=wandb_project,
        )
        asyncio.run(check(run))
        settle_log_path(run.log_path, log_dir_exists)
        note_tasks(run)
        asyncio.run(train(run))
    except (UsageError, TaskError, MissingDependencyError) as exc:
        typer.echo(f"train.py: {exc}", err=True)
        raise typer.Exit(2) from exc
    except HarborGymError as exc:
        typer.echo(f"train.py: {type(exc).__name__}: {exc}", err=True)
        raise typer.Exit(1) from exc
    except KeyboardInterrupt:
        typer.echo(f"train.py: interrupted; resume with --log-path {log_path} --log-dir-exists resume", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"run folder: {log_path}")


@dataclass(frozen=True)
class Run:
    """The flags, resolved."""

    env: TerminalEnvConfig
    """Its task is the first to train on."""
    tasks: tuple[SourcedTask, ...]
    test_tasks: tuple[str, ...]
    task_weights: dict[str, float]
    backend: Backend
    base_url: str | None
    model_name: str | None
    renderer_name: str
    max_tokens: int
    max_context_tokens: int
    temperature: float
    groups_per_batch: int
    group_size: int
    warm_sandboxes: int
    num_batches: int | None
    epochs: int | None
    learning_rate: float
    lora_rank: int
    loss_fn: str
    kl_penalty_coef: float
    load_checkpoint_path: str | None
    seed: int
    max_rollout_retries: int
    remove_constant_groups: bool
    zero_reward_on_limit: bool
    max_steps_off_policy: int | None
    stream_minibatches: int | None
    rollout_executor: RolloutExecutor | None
    rollout_workers: int
    log_path: Path
    save_every: int
    eval_every: int
    eval_temperature: float
    test_episodes: int
    wandb_project: str | None


async def find_tasks(
    sources: Sequence[str | Path], registry_path: Path | None, where: Sequence[str]
) -> list[SourcedTask]:
    """Fetch the tasks to train and test on."""
    if not sources:
        raise UsageError("say what to train on: --task-dir DIRECTORY, or --task git+URL@COMMIT#path or org/name@ref")
    return filter_tasks(await resolve_tasks(sources, registry_path=registry_path), where)


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Read ``NAME=WEIGHT``."""
    try:
        return {name: float(weight) for name, weight in (text.rsplit("=", 1) for text in texts)}
    except ValueError as exc:
        raise UsageError(f"--task-weight is NAME=NUMBER, got {', '.join(texts)}") from exc


async def check(run: Run) -> None:
    """Refuse what can't work before anything is started."""
    from harbor_gym.episode.task import load_task

    for task in run.tasks:
        await load_task(task.path)
    check_rollouts(run)
    if run.epochs is not None or run.task_weights:
        count_batches(run)
    await asyncio.to_thread(sandboxes.preflight, sandboxes.environment_config(run.env.sandbox))
    if run.backend is Backend.TINKER and run.base_url is None and not os.environ.get("TINKER_API_KEY"):
        raise UsageError("TINKER_API_KEY is not set; set it, or train on this machine with --backend local")
    if run.backend is Backend.LOCAL and run.base_url is not None:
        raise UsageError("--backend local starts its own server; --base-url belongs to --backend tinker")


def check_rollouts(run: Run) -> None:
    """Refuse ways to train that the cookbook would fail at, or get wrong, in the middle of a run."""
    if run.num_batches is not None and run.epochs is not None:
        raise UsageError("give either --epochs or --num-batches")
    if run.rollout_executor is not None and run.warm_sandboxes:
        raise UsageError("--warm-sandboxes are of this process: with --rollout-executor nobody would use them")
    parts = run.stream_minibatches
    if parts is not None and run.groups_per_batch % parts:
        raise UsageError(f"--groups-per-batch {run.groups_per_batch} can't be divided in {parts} --stream-minibatches")
    if not run.remove_constant_groups or run.max_steps_off_policy is not None:
        return
    if parts is not None:
        raise UsageError("--remove-constant-groups and --stream-minibatches: a batch without a mixed group would fail")
    if len(run.tasks) - len(run.test_tasks) > 1:
        # Its loop then gives the remaining groups the names of the first ones: metrics under the wrong tasks.
        raise UsageError("--remove-constant-groups with several tasks needs --max-steps-off-policy (0 will do)")


def count_batches(run: Run) -> int:
    """Return the batches of the whole run."""
    train_tasks, _ = split_tasks(run.tasks, test_tasks=run.test_tasks)
    return len(dataset_builder(run, run.model_name or "").training_set(train_tasks))


def note_tasks(run: Run) -> None:
    """Write down what is trained on, and where it came from; a resumed run must have the same tasks.

    Raises:
        UsageError: The run to resume had others: its batches would not go on where they were.
    """
    path = run.log_path / "tasks.json"
    rows = [
        {"name": item.name, "source": item.source, "commit": item.commit, "digest": item.digest, "path": str(item.path)}
        for item in run.tasks
    ]
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))["tasks"]
        then = {f"{row['name']} {row['digest']}" for row in before}
        now = {f"{item.name} {item.digest}" for item in run.tasks}
        if then != now:
            raise UsageError(f"{path}: the run began with other tasks, differing in {', '.join(sorted(then ^ now))}")
    document = {"format": 1, "tasks": rows, "test_tasks": run.test_tasks}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def settle_log_path(log_path: Path, behavior: LogDirExists) -> None:
    """Make the run's folder, dealing with one that is there as the flag says."""
    if behavior is LogDirExists.ASK and log_path.exists() and not sys.stdin.isatty():
        raise UsageError(f"{log_path} exists; say --log-dir-exists delete, resume or raise")
    if behavior is LogDirExists.RAISE and log_path.exists():
        raise UsageError(f"{log_path} exists and --log-dir-exists is raise")
    if log_path.exists():
        from tinker_cookbook.cli_utils import check_log_dir

        check_log_dir(str(log_path), behavior.value)
    log_path.mkdir(parents=True, exist_ok=True)


async def train(run: Run) -> None:
    """Run the cookbook's loop, and the reporter beside it."""
    random.seed(run.seed)
    # The cookbook calls methods that newer tinker versions deprecate.
    for message in ("DEPRECATED: ", "Using the future as the SamplingClient"):
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
    async with model_service(run) as (model_name, base_url):
        from tinker_cookbook.rl import train as loop

        from harbor_gym.pool import close_shared_pools

        strategy = rollout_strategy(run)
        evaluator = await evaluator_of(run, model_name, strategy)
        start_path = await first_weights(run, model_name, base_url)
        config = training_config(run, model_name, base_url, strategy, start_path, evaluator)
        name = f"{len(run.tasks)} tasks" if len(run.tasks) > 1 else run.env.task_dir.name
        title = f"{name}, {run.env.sandbox}, learning rate {run.learning_rate:g}"
        # The loop sets up logging before it first waits; the console is calmed right after that.
        asyncio.get_running_loop().call_soon(report.quiet_console)
        async with report.live_progress(
            run.log_path, total=run.num_batches or count_batches(run), show=typer.echo, title=title
        ):
            try:
                async with cancelled_with(watch_for_fault(strategy)):
                    with workers_of(run, strategy) as executor:
                        await loop.main(config, rollout_executor=executor)
                    if evaluator is not None:
                        await evaluate_last(run, evaluator, base_url)
                        await export_best(run, base_url)
            finally:
                await close_shared_pools()


@contextlib.asynccontextmanager
async def model_service(run: Run) -> AsyncGenerator[tuple[str, str | None]]:
    """Yield the model's name and the address that serves it, None for the Tinker service's own."""
    if run.backend is Backend.TINKER:
        assert run.model_name is not None
        yield run.model_name, run.base_url
        return
    from harbor_gym.embedded import ensure_policy
    from harbor_gym.embedded.server import TrainingServer

    if run.model_name is not None:
        model_dir = Path(run.model_name).resolve()  # noqa: ASYNC240 - one stat before anything runs
    else:
        typer.echo("preparing the embedded policy (once; it is cached)")
        model_dir = await ensure_policy(
            run.env.task_dir,
            sandbox=run.env.sandbox,
            renderer_name=run.renderer_name,
            seed=run.seed,
            progress=show_preparation,
        )
    typer.echo("starting the embedded training server")
    async with TrainingServer(model_dir, run.log_path / "server", max_lora_rank=run.lora_rank) as server:
        os.environ.update(server.client_environment())
        async with cancelled_with(server.monitor()):
            yield str(model_dir), server.base_url


async def first_weights(run: Run, model_name: str, base_url: str | None) -> str | None:
    """Return what to start from: the given weights, or a new adapter drawn by the seed, which the loop would not do.

    A run to resume loses what it has from after its last checkpoint, and its own checkpoint comes before this.
    """
    import tinker
    from tinker_cookbook.checkpoint_utils import get_last_checkpoint

    last = get_last_checkpoint(str(run.log_path))
    report.forget_batches(run.log_path, first=last.batch or 0 if last is not None else 0)
    if run.load_checkpoint_path is not None or last is not None:
        return run.load_checkpoint_path
    service = tinker.ServiceClient(base_url=base_url)
    trainer = await service.create_lora_training_client(model_name, rank=run.lora_rank, seed=run.seed)
    return (await trainer.save_state("start", ttl_seconds=START_TTL_SEC)).path


@contextlib.asynccontextmanager
async def cancelled_with(watch: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Run the block until ``watch`` fails; then cancel the block and raise that failure."""
    block = asyncio.current_task()
    assert block is not None
    watcher = asyncio.create_task(watch)
    watcher.add_done_callback(lambda task: task.cancelled() or task.exception() is None or block.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if watcher.done() and not watcher.cancelled() and (error := watcher.exception()) is not None:
            block.uncancel()
            raise error from None
        raise
    finally:
        watcher.cancel()
        await asyncio.wait((watcher,))


async def watch_for_fault(strategy: "RetryThenMask") -> None:
    """Raise what ends the run: the streaming loop itself would wait for ever for the group that it came out of."""
    while strategy.fault is None:  # noqa: ASYNC110 - the strategy must pickle, so it has no event
        await asyncio.sleep(FAULT_POLL_SEC)
    raise strategy.fault


def show_preparation(phase: str, done: int, total: int, loss: float | None) -> None:
    """Show every tenth part of a preparation."""
    if done * 10 // total > (done - 1) * 10 // total:
        typer.echo(f"{phase} {done}/{total}" + (f"  loss {loss:.2f}" if loss is not None else ""))


def rollout_strategy(run: Run) -> "RetryThenMask":
    """Return what is done about lost episodes: run again in a fresh sandbox, then left out; never a 0."""
    from harbor_gym.adapters.tinker import RetryThenMask

    return RetryThenMask(max_retries=run.max_rollout_retries, seed=run.seed)


def dataset_builder(run: Run, model_name: str, test_episodes: int = 0) -> "HarborRLDatasetBuilder":
    """Return the configuration of the run's batches."""
    from harbor_gym.adapters.tinker import HarborRLDatasetBuilder

    return HarborRLDatasetBuilder(
        env=run.env.model_copy(update={"zero_reward_on_limit": run.zero_reward_on_limit}),
        tasks=run.tasks,
        test_tasks=run.test_tasks,
        weights=run.task_weights,
        seed=run.seed,
        model_name=model_name,
        renderer_name=run.renderer_name,
        max_tokens=run.max_tokens,
        max_context_tokens=run.max_context_tokens,
        groups_per_batch=run.groups_per_batch,
        group_size=run.group_size,
        warm_sandboxes=run.warm_sandboxes,
        num_batches=run.num_batches,
        epochs=run.epochs,
        test_episodes=test_episodes,
        transcripts_dir=str(run.log_path / "transcripts"),
    )


@contextlib.contextmanager
def workers_of(run: Run, strategy: "RetryThenMask") -> Generator["Executor | None"]:
    """Yield what plays the groups; None is this process."""
    if run.rollout_executor is None:
        yield None
        return
    from harbor_gym.adapters.tinker.executors import rollout_executor

    with rollout_executor(run.rollout_executor.value, run.rollout_workers, strategy) as executor:
        yield executor


async def evaluator_of(run: Run, model_name: str, strategy: "RetryThenMask") -> "HarborEvaluator | None":
    """Return what evaluates during the run; None where nothing does."""
    from harbor_gym.adapters.tinker import HarborEvaluator

    test_set = await dataset_builder(run, model_name, run.test_episodes).test_set() if run.eval_every else None
    if test_set is None:
        return None
    return HarborEvaluator(
        test_set,
        max_tokens=run.max_tokens,
        run_dir=run.log_path,
        strategy=strategy,
        temperature=run.eval_temperature,
        first_checkpoint=run.load_checkpoint_path or "base",
    )


async def evaluate_last(run: Run, evaluator: "HarborEvaluator", base_url: str | None) -> None:
    """Evaluate what came out of the last batch: the loop evaluates before a batch, so not that."""
    import tinker
    from tinker_cookbook.checkpoint_utils import get_last_checkpoint

    last = get_last_checkpoint(str(run.log_path))
    if last is None or last.state_path is None or last.batch is None:
        raise AssertionError("the loop saves its last batch")
    if any(item.batch == last.batch for item in read_evaluations(run.log_path)):
        return
    trainer = await tinker.ServiceClient(base_url=base_url).create_training_client_from_state(last.state_path)
    client = await trainer.save_weights_and_get_sampling_client()
    await evaluator.evaluate(client, batch=last.batch, checkpoint=last.name)


async def export_best(run: Run, base_url: str | None) -> None:
    """Say which checkpoint did best, and write its weights, an adapter, into the run's folder."""
    from tinker_cookbook import weights
    from tinker_cookbook.checkpoint_utils import load_checkpoints_file
    from tinker_cookbook.exceptions import WeightsDownloadError

    from harbor_gym.embedded.server import export_adapter

    best = read_best(run.log_path)
    typer.echo(f"best: checkpoint {best.checkpoint}, after batch {best.batch}, reward {best.reward:.2f}")
    saved = {item.name: item for item in load_checkpoints_file(str(run.log_path))}
    if (checkpoint := saved.get(best.checkpoint)) is None:
        return  # what the run started from
    folder = run.log_path / "best"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if run.backend is Backend.LOCAL:
            await asyncio.to_thread(export_adapter, run.log_path / "server", checkpoint.sampler_path or "", folder)
        else:
            # Of Tinker's two ways the SDK still has the one for training weights.
            path = checkpoint.state_path or ""
            await asyncio.to_thread(weights.download, tinker_path=path, output_dir=str(folder), base_url=base_url)
    except (UsageError, WeightsDownloadError) as exc:
        typer.echo(f"its weights could not be exported: {exc}", err=True)
    else:
        typer.echo(f"its weights: {folder}")


def training_config(
    run: Run,
    model_name: str,
    base_url: str | None,
    strategy: "RetryThenMask",
    start_path: str | None,
    evaluator: "HarborEvaluator | None",
) -> "Config":
    """Return the cookbook's configuration of this run."""
    from tinker_cookbook.rl.train import AsyncConfig, Config, KLReferenceConfig, StreamMinibatchConfig

    return Config(
        model_name=model_name,
        base_url=base_url,
        renderer_name=run.renderer_name,
        recipe_name="harbor_gym_train",
        dataset_builder=dataset_builder(run, model_name),
        max_tokens=run.max_tokens,
        temperature=run.temperature,
        learning_rate=run.learning_rate,
        lora_rank=run.lora_rank,
        loss_fn=run.loss_fn,  # pyright: ignore[reportArgumentType]  # the service knows its names, and says so
        kl_penalty_coef=run.kl_penalty_coef,
        kl_reference_config=KLReferenceConfig(base_model=model_name) if run.kl_penalty_coef > 0 else None,
        load_checkpoint_path=start_path,
        log_path=str(run.log_path),
        # What is evaluated must be there to be named the best.
        save_every=math.gcd(run.save_every, run.eval_every) if evaluator is not None else run.save_every,
        eval_every=run.eval_every,
        evaluator_builders=[] if evaluator is None else [lambda: evaluator],
        wandb_project=run.wandb_project,
        rollout_error_tolerance=strategy,
        remove_constant_reward_groups=run.remove_constant_groups,
        async_config=None
        if run.max_steps_off_policy is None
        else AsyncConfig(max_steps_off_policy=run.max_steps_off_policy, groups_per_batch=run.groups_per_batch),
        stream_minibatch_config=None
        if run.stream_minibatches is None
        else StreamMinibatchConfig(groups_per_batch=run.groups_per_batch, num_minibatches=run.stream_minibatches),
    )


if __name__ == "__main__":
    run_and_exit(app)
