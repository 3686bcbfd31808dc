"""Evaluate a checkpoint or a base model on tasks: pass@k and mean reward with intervals, as a table and as JSON.

    python recipes/eval.py tasks --run runs/x --env local --episodes 16        # the run's last checkpoint
    python recipes/eval.py tasks/devops_task --run runs/x --checkpoint 000010
    python recipes/eval.py tasks/devops_task --run runs/x --checkpoint best     # of those that --eval-every evaluated
    python recipes/eval.py tasks --model-name Qwen/Qwen3-30B-A3B-Instruct-2507 --renderer-name qwen3_instruct

A model that is a directory, as the embedded backend's are, is served here; a run's checkpoints with it.
"""

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym import TerminalEnvConfig, sandboxes
from harbor_gym._runtime.exits import run_and_exit
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskError, UsageError
from harbor_gym.evaluation import EpisodeResult, Player, Report, evaluate, format_report, read_best, summarize
from harbor_gym.report.metrics import run_config
from harbor_gym.tasks import find_tasks
from harbor_gym.verify_paths import parse_verify_paths

if TYPE_CHECKING:
    import tinker

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
MAX_TOKENS, MAX_CONTEXT_TOKENS = 4096, 32_768


@dataclass(frozen=True)
class Policy:
    """What is evaluated, and where it is served."""

    model_name: str
    renderer_name: str
    checkpoint: str | None
    max_tokens: int
    max_context_tokens: int
    max_lora_rank: int
    base_url: str | None
    is_served_here: bool
    server_dir: Path | None


@app.command()
def main(
    paths: Annotated[list[Path], typer.Argument(help="Task directories, or directories of tasks.")],
    run: Annotated[Path | None, typer.Option(help="Folder of a training run: its model and checkpoints.")] = None,
    checkpoint: Annotated[str, typer.Option(help="The run's by name, tinker://…, last, best, or base.")] = "last",
    model_name: Annotated[str | None, typer.Option(help="Base model, where no run is given.")] = None,
    renderer_name: Annotated[str, typer.Option(help="Its tinker-cookbook renderer.")] = "qwen3_instruct",
    base_url: Annotated[str | None, typer.Option(help="Address of a Tinker-compatible server.")] = None,
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, daytona, or module:Class.")] = "docker",
    sandbox_option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for it; repeatable.")] = None,
    verify_paths: Annotated[str, typer.Option(help="Pristine view: auto, off, or paths with commas between.")] = "auto",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 8,
    attempts: Annotated[str, typer.Option(help="The k of pass@k, with commas between.")] = "1,4,8",
    threshold: Annotated[float, typer.Option(help="Reward at which a task counts as solved.")] = 1.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at the same time.")] = 8,
    retries: Annotated[int, typer.Option(min=0, help="Fresh attempts after an infrastructure error.")] = 1,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns after which an episode is cut and verified.")] = 30,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens in one message. [default: the run's]")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    output: Annotated[Path | None, typer.Option(help="Folder for eval.json, transcripts and recordings.")] = None,
) -> None:
    """Play episodes of each task with a policy, and say how many it solves."""
    try:
        ks = [k for k in map(int, attempts.split(",")) if 1 <= k <= episodes]
        sandboxes.preflight(sandboxes.environment_config(env))
        options, carried = sandboxes.parse_options(sandbox_option or ()), parse_verify_paths(verify_paths)
        tasks = [
            TerminalEnvConfig(
                task_dir=task, sandbox=env, sandbox_options=options, verify_paths=carried, max_turns=max_turns
            )
            for task in find_tasks(paths)
        ]
        policy = policy_of(run, checkpoint, model_name, renderer_name, base_url, max_tokens)
        results = asyncio.run(play(policy, tasks, episodes, concurrency, retries, temperature, output))
    except (UsageError, TaskError, MissingDependencyError) as exc:
        typer.echo(f"eval.py: {exc}", err=True)
        raise typer.Exit(2) from exc
    except HarborGymError as exc:
        typer.echo(f"eval.py: {type(exc).__name__}: {exc}", err=True)
        raise typer.Exit(1) from exc
    show(summarize(results, threshold=threshold, ks=ks), output)


def policy_of(
    run: Path | None,
    checkpoint: str,
    model_name: str | None,
    renderer_name: str,
    base_url: str | None,
    max_tokens: int | None,
) -> Policy:
    """Find out what is to be evaluated: a run says most of it itself."""
    if (run is None) == (model_name is None):
        raise UsageError("say what to evaluate: either --run or --model-name")
    config = run_config(run) if run is not None else {}
    if run is not None and "model_name" not in config:
        raise UsageError(f"{run} is no training run: it has no config.json with a model_name")
    dataset = config.get("dataset_builder") or {}
    name = model_name or config["model_name"]
    is_served_here = base_url is None and Path(name).is_dir()
    if not is_served_here and not os.environ.get("TINKER_API_KEY"):
        raise UsageError("TINKER_API_KEY is not set; a model that is a directory is served here without one")
    return Policy(
        model_name=name,
        renderer_name=config.get("renderer_name") or dataset.get("renderer_name") or renderer_name,
        checkpoint=checkpoint_of(run, checkpoint, "state_path" if is_served_here else "sampler_path"),
        max_tokens=max_tokens or config.get("max_tokens") or MAX_TOKENS,
        max_context_tokens=dataset.get("max_context_tokens") or MAX_CONTEXT_TOKENS,
        max_lora_rank=config.get("lora_rank") or 32,
        base_url=base_url or (None if is_served_here else config.get("base_url")),
        is_served_here=is_served_here,
        server_dir=run / "server" if run is not None and is_served_here else None,
    )


def checkpoint_of(run: Path | None, wanted: str, kind: str) -> str | None:
    """Return the address of the wanted weights, None for the base model's own."""
    if wanted == "best" and run is not None:
        wanted = read_best(run).checkpoint
    if wanted.startswith("tinker://"):
        return wanted
    if wanted == "base" or (run is None and wanted == "last"):
        return None
    known: dict[str, str] = {}
    if run is not None:
        with contextlib.suppress(OSError):
            lines = (run / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()
            known = {item["name"]: item[kind] for item in map(json.loads, lines) if kind in item}
    if wanted == "last" and known:
        return known[list(known)[-1]]
    if wanted not in known:
        names = ", ".join(known) or "none"
        raise UsageError(f"{run} has no checkpoint {wanted!r} to sample from; it has: {names}")
    return known[wanted]


async def play(
    policy: Policy,
    tasks: Sequence[TerminalEnvConfig],
    episodes: int,
    concurrency: int,
    retries: int,
    temperature: float,
    output: Path | None,
) -> list[EpisodeResult]:
    """Serve the policy and play."""
    from harbor_gym.adapters.tinker.sampling import codec_for, tinker_sampler

    async with sampling_client(policy) as client:
        codec = await asyncio.to_thread(codec_for, policy.renderer_name, policy.model_name)
        player = Player(
            codec=codec,
            sample=tinker_sampler(client, stop=codec.stop, max_tokens=policy.max_tokens, temperature=temperature),
            max_tokens=policy.max_tokens,
            max_context_tokens=policy.max_context_tokens,
            retries=retries,
            transcripts_dir=output / "transcripts" if output is not None else None,
        )
        return await evaluate(tasks, player, episodes=episodes, concurrency=concurrency, on_episode=show_episode)


@contextlib.asynccontextmanager
async def sampling_client(policy: Policy) -> AsyncGenerator["tinker.SamplingClient"]:
    """Yield a client of the policy, with a server of our own where the model is a directory."""
    async with contextlib.AsyncExitStack() as stack:
        base_url = policy.base_url
        if policy.is_served_here:
            from harbor_gym.embedded.server import TrainingServer

            state = policy.server_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            typer.echo("starting the embedded server")
            server = TrainingServer(Path(policy.model_name), state, max_lora_rank=policy.max_lora_rank)
            await stack.enter_async_context(server)
            os.environ.update(server.client_environment())
            base_url = server.base_url
        import tinker

        service = tinker.ServiceClient(base_url=base_url)
        if policy.is_served_here and policy.checkpoint is not None:
            # A server that was started anew holds no adapter: it is made of the training state, then sampled from.
            trainer = await service.create_training_client_from_state(policy.checkpoint)
            yield await trainer.save_weights_and_get_sampling_client()
        else:
            base = None if policy.checkpoint else policy.model_name
            yield await service.create_sampling_client(model_path=policy.checkpoint, base_model=base)


def show_episode(result: EpisodeResult) -> None:
    """Show a line an episode."""
    outcome = result.error or f"{result.end_reason}, reward {result.reward:g}"
    typer.echo(f"{result.task} {result.episode}: {outcome}, {result.turns} turns, {result.seconds:.1f} s")


def show(report: Report, output: Path | None) -> None:
    """Print the table, and write the JSON where a folder is given."""
    typer.echo(format_report(report))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "eval.json").write_text(json.dumps(report.as_object(), indent=1) + "\n", encoding="utf-8")
        typer.echo(f"written: {output / 'eval.json'}")


if __name__ == "__main__":
    run_and_exit(app)
