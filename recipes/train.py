"""Train a policy on one Harbor task with tinker-cookbook's RL loop.

The same loop runs against the Tinker service (``--backend tinker``) and against the embedded server on this machine
(``--backend local``); only the address differs.

    python recipes/train.py --task-dir tasks/devops_task --env daytona --model-name Qwen/Qwen3-30B-A3B-Instruct-2507 \
        --renderer-name qwen3 --max-tokens 4096 --temperature 0.7 --groups-per-batch 1 --group-size 8 \
        --num-batches 25 --learning-rate 4e-5 --lora-rank 32 --save-every 10 --log-path ./runs/x
"""

import asyncio
import contextlib
import os
import random
import sys
import warnings
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym import TerminalEnvConfig, reporting, sandboxes
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskError, UsageError

if TYPE_CHECKING:
    from tinker_cookbook.rl.train import Config


class Backend(StrEnum):
    """Where tokens are sampled and gradients are taken."""

    TINKER = "tinker"
    LOCAL = "local"


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

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

WHAT, HOW, WHERE = "What to train on", "How to train", "Where and what to keep"


def option(help: str, panel: str) -> typer.models.OptionInfo:
    """Declare one flag."""
    return typer.Option(help=help, rich_help_panel=panel)


@app.command(help="Train a policy on one Harbor task. Flags without a default take the backend's own.")
def main(
    task_dir: Annotated[Path, option("Harbor task directory.", WHAT)],
    env: Annotated[str, option("Sandbox: local, docker, daytona, any Harbor type, or module:Class.", WHAT)] = "docker",
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
    learning_rate: Annotated[float | None, option("Adam's learning rate.", HOW)] = None,
    lora_rank: Annotated[int, option("Rank of the LoRA adapter.", HOW)] = 32,
    loss_fn: Annotated[str, option("importance_sampling, ppo, cispo, …", HOW)] = "importance_sampling",
    load_checkpoint_path: Annotated[str | None, option("Start from these weights (tinker://…).", HOW)] = None,
    seed: Annotated[int, option("Seeds the embedded policy and Python; sampling is the server's.", HOW)] = 0,
    log_path: Annotated[Path | None, option("Folder of the run.  [default: runs/TASK-TIME]", WHERE)] = None,
    log_dir_exists: Annotated[LogDirExists, option("If that folder exists.", WHERE)] = LogDirExists.ASK,
    save_every: Annotated[int, option("Batches between checkpoints; 0 keeps only the last.", WHERE)] = 10,
    eval_every: Annotated[int, option("Batches between evaluations; 0 is never.", WHERE)] = 0,
    wandb_project: Annotated[str | None, option("Log to this Weights & Biases project too.", WHERE)] = None,
) -> None:
    """Resolve the flags, check everything that can be checked, then train."""
    defaults = DEFAULTS[backend]
    run = Run(
        env=TerminalEnvConfig(task_dir=task_dir, sandbox=env, max_turns=max_turns or defaults.max_turns),
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
        num_batches=num_batches or defaults.num_batches,
        learning_rate=learning_rate or defaults.learning_rate,
        lora_rank=lora_rank,
        loss_fn=loss_fn,
        load_checkpoint_path=load_checkpoint_path,
        seed=seed,
        log_path=(log_path or Path("runs") / f"{task_dir.name}-{datetime.now():%Y%m%d-%H%M%S}").resolve(),
        save_every=save_every,
        eval_every=eval_every,
        wandb_project=wandb_project,
    )
    try:
        asyncio.run(check(run))
        settle_log_path(run.log_path, log_dir_exists)
        asyncio.run(train(run))
    except (UsageError, TaskError, MissingDependencyError) as exc:
        typer.echo(f"train.py: {exc}", err=True)
        raise typer.Exit(2) from exc
    except HarborGymError as exc:
        typer.echo(f"train.py: {type(exc).__name__}: {exc}", err=True)
        raise typer.Exit(1) from exc
    except KeyboardInterrupt:
        typer.echo(f"train.py: interrupted; resume with --log-path {run.log_path} --log-dir-exists resume", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"run folder: {run.log_path}")


@dataclass(frozen=True)
class Run:
    """The flags, resolved."""

    env: TerminalEnvConfig
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
    num_batches: int
    learning_rate: float
    lora_rank: int
    loss_fn: str
    load_checkpoint_path: str | None
    seed: int
    log_path: Path
    save_every: int
    eval_every: int
    wandb_project: str | None


async def check(run: Run) -> None:
    """Refuse what can't work before anything is started."""
    from harbor_gym.episode.task import load_task

    await load_task(run.env.task_dir)
    await asyncio.to_thread(sandboxes.preflight, sandboxes.environment_config(run.env.sandbox))
    if run.backend is Backend.TINKER and run.base_url is None and not os.environ.get("TINKER_API_KEY"):
        raise UsageError("TINKER_API_KEY is not set; set it, or train on this machine with --backend local")
    if run.backend is Backend.LOCAL and run.base_url is not None:
        raise UsageError("--backend local starts its own server; --base-url belongs to --backend tinker")


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
    # The cookbook calls methods that newer tinker versions deprecate; its progress bars would break up our lines.
    warnings.filterwarnings("ignore", message="DEPRECATED: ", category=FutureWarning)
    os.environ.setdefault("TQDM_DISABLE", "1")
    async with model_service(run) as (model_name, base_url):
        from tinker_cookbook.rl import train as loop

        from harbor_gym.pool import close_shared_pools

        config = training_config(run, model_name, base_url)
        title = f"{run.env.task_dir.name}, {run.env.sandbox}, learning rate {run.learning_rate:g}"
        # The loop sets up logging before it first waits; the console is calmed right after that.
        asyncio.get_running_loop().call_soon(reporting.calm_console)
        async with reporting.following(run.log_path, total=run.num_batches, show=typer.echo, title=title):
            try:
                await loop.main(config)
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


def show_preparation(phase: str, done: int, total: int, loss: float | None) -> None:
    """Show every tenth part of a preparation."""
    if done * 10 // total > (done - 1) * 10 // total:
        typer.echo(f"{phase} {done}/{total}" + (f"  loss {loss:.2f}" if loss is not None else ""))


def training_config(run: Run, model_name: str, base_url: str | None) -> "Config":
    """Return the cookbook's configuration of this run."""
    from tinker_cookbook.rl.rollout_strategy import MinViableGroup
    from tinker_cookbook.rl.train import Config

    from harbor_gym.tinker import HarborSingleTaskRLDatasetBuilder

    return Config(
        model_name=model_name,
        base_url=base_url,
        renderer_name=run.renderer_name,
        recipe_name="harbor_gym_train",
        dataset_builder=HarborSingleTaskRLDatasetBuilder(
            env=run.env,
            model_name=model_name,
            renderer_name=run.renderer_name,
            max_tokens=run.max_tokens,
            max_context_tokens=run.max_context_tokens,
            groups_per_batch=run.groups_per_batch,
            group_size=run.group_size,
            warm_sandboxes=run.warm_sandboxes,
            num_batches=run.num_batches,
            test_episodes=run.group_size if run.eval_every else 0,
            transcripts_dir=str(run.log_path / "transcripts"),
        ),
        max_tokens=run.max_tokens,
        temperature=run.temperature,
        learning_rate=run.learning_rate,
        lora_rank=run.lora_rank,
        loss_fn=run.loss_fn,  # pyright: ignore[reportArgumentType]  # the service knows its names, and says so
        load_checkpoint_path=run.load_checkpoint_path,
        log_path=str(run.log_path),
        save_every=run.save_every,
        eval_every=run.eval_every,
        wandb_project=run.wandb_project,
        # An episode lost to the infrastructure is run again in a fresh sandbox, then left out; it is never a 0.
        rollout_error_tolerance=MinViableGroup(),
    )


if __name__ == "__main__":
    app()
