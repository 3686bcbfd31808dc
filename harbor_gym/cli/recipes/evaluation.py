"""Play the episodes of an evaluation, with the tinker adapter or a chat endpoint, and print their outcomes."""

import asyncio
import contextlib
import itertools
import json
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import one_run_at_a_time, replace_text
from harbor_gym._runtime.shipped import resolve_shipped
from harbor_gym.adapters.tinker.policies import MAX_TOKENS, EvalConfig, EvaluatedPolicy, find_policy, in_the_runs_format
from harbor_gym.cli.progress import bars_on_a_terminal
from harbor_gym.cli.shared import echo
from harbor_gym.cluster.workers import require_shared_rate
from harbor_gym.config import AgentEpisodeConfig, AnyEpisode, EpisodeConfig, TerminalEnvConfig, require_own_loop
from harbor_gym.episode.task import require_sandbox
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.evaluation import (
    ChatPlayer,
    EpisodePlayer,
    EpisodeResult,
    FirstAlone,
    Journal,
    OpenPlayer,
    Player,
    Progress,
    RemotePlayer,
    Report,
    evaluate,
    figures,
    format_report,
    summarize,
)
from harbor_gym.evaluation.journal import forget
from harbor_gym.evaluation.provenance import digests, provenance, versions
from harbor_gym.report.live import duration
from harbor_gym.report.tracking import tracked
from harbor_gym.samplers import ChatEndpoint
from harbor_gym.samplers.endpoints import require_endpoint
from harbor_gym.starts import Starts
from harbor_gym.tasks import resolve_tasks
from harbor_gym.tasks.receipts import playable_tasks
from harbor_gym.transcripts import RESULT_NAME


def evaluate_policy(config: EvalConfig) -> Report:
    """Play episodes of each task with a policy, and print each outcome. Blocks until all are over.

    Raises:
        HarborGymError: A setting, a task or the sandbox can't be used (before anything is started), or the policy's
            service failed.
    """
    config.track.require()
    require_shared_rate(config.rollout_executor, config.rollout_starts_per_sec)
    require_sandbox(config.env)
    config = config.model_copy(update={"env": in_the_runs_format(config)})
    if config.base_url is not None and config.model is None:
        asyncio.run(require_endpoint(config.base_url))
    found = asyncio.run(resolve_tasks(config.paths, registry_path=config.registry_path))
    found = playable_tasks(found, config.env)
    tasks = [config.env.model_copy(update={"task_dir": task.path}) for task in found]
    starts = _starts(config, tasks)
    settings, started = _settings(config), datetime.now(UTC)
    task_dirs = [task.path for task in found]
    task_digests = digests(task_dirs)
    if config.model is None:
        _require_policy_of_a_run(config)
        policy = find_policy(config)
        settings |= {"model": policy.model_name, "weights": policy.checkpoint}
        with _journal(config, settings, task_digests) as journal:
            results = asyncio.run(_play(config, policy, tasks, journal, starts))
    else:
        results = asyncio.run(_play_endpoint(config, tasks, settings, task_digests, starts))
    ks = [k for k in config.attempts if 1 <= k <= config.episodes]
    origin = provenance(task_dirs, task_digests, results, started)
    return summarize(results, threshold=config.threshold, ks=ks, settings=settings, provenance=origin)


def track(config: EvalConfig, report: Report) -> None:
    """Send an evaluation to its tracker, if it has one and a folder."""
    if config.output is not None:
        with tracked(config.track, config.output, report.settings) as log:
            log(figures(report), 0)


def _starts(config: EvalConfig, tasks: Sequence[AnyEpisode]) -> Starts | None:
    """Return where the episodes begin, if each draws one."""
    env = config.env
    if not isinstance(env, TerminalEnvConfig):
        return None
    if env.start_turn == "backward":
        raise UsageError("--start-turn backward follows a training run's rewards: give a number, mid or uniform")
    starts = Starts.read(env, in_tokens=config.model is None)
    if starts is not None:
        for task in tasks:
            starts.draw(require_own_loop(task, "a drawn start"), "")
    return starts


class _Drawn:
    """A player whose episodes each begin where they draw it, by their numbers."""

    def __init__(self, player: EpisodePlayer, starts: Starts) -> None:
        self._player = player
        self._starts = starts

    @property
    def max_retries(self) -> int:
        return self._player.max_retries

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        drawn = self._starts.draw(require_own_loop(config, "a drawn start"), f"episode {number}")
        return await self._player.attempt(drawn, number)


@contextlib.contextmanager
def _journal(
    config: EvalConfig, settings: dict[str, Any], task_digests: Mapping[str, str]
) -> Generator[Journal | None]:
    """Yield the journal of the output folder, which no other evaluation can use during the block."""
    if config.output is None:
        yield None
        return
    config.output.mkdir(parents=True, exist_ok=True)
    with one_run_at_a_time(config.output, flag="--output"):
        if config.fresh:
            forget(config.output)
        yield Journal(config.output, settings, task_digests)


async def _evaluate(
    config: EvalConfig,
    open_player: OpenPlayer,
    tasks: Sequence[AnyEpisode],
    journal: Journal | None,
    starts: Starts | None,
) -> list[EpisodeResult]:
    """Play the episodes that an earlier evaluation in the output folder did not play."""
    played = journal.graded if journal is not None else []
    total, ended, started = len(tasks) * config.episodes, len(played), time.monotonic()
    progress = Progress(total, config.threshold, played)
    if played:
        echo(f"{len(played)} episodes were played before")

    def on_episode(result: EpisodeResult) -> None:
        nonlocal ended
        if journal is not None:
            journal.add(result)
        ended += 1
        left_sec = (time.monotonic() - started) / (ended - len(played)) * (total - ended)
        shown.line(progress.line(result))
        shown.bar("episodes", ended, total, f"ETA {duration(left_sec)}" if left_sec else "")

    with bars_on_a_terminal() as shown:
        shown.bar("episodes", ended, total)
        async with _player(config, open_player, len(tasks)) as player:
            return await evaluate(
                tasks,
                player if starts is None else _Drawn(player, starts),
                episodes=config.episodes,
                n_concurrent=config.n_concurrent,
                on_episode=on_episode,
                played=played,
            )


async def _play(
    config: EvalConfig,
    policy: EvaluatedPolicy,
    tasks: Sequence[AnyEpisode],
    journal: Journal | None,
    starts: Starts | None,
) -> list[EpisodeResult]:
    """Play with a policy of the tinker adapter, served if need be."""
    from harbor_gym.embedded.service import sampling_client

    async with sampling_client(policy, echo) as client:
        open_player = partial(
            _policy_player,
            client,
            policy,
            config.temperature,
            max_retries=config.max_retries,
            folder=_transcripts(config),
        )
        return await _evaluate(config, open_player, tasks, journal, starts)


@contextlib.asynccontextmanager
async def _policy_player(
    client: Any, policy: EvaluatedPolicy, temperature: float, *, max_retries: int, folder: Path | None
) -> AsyncGenerator[Player]:
    """Yield a player for a policy of the tinker adapter, in this process or a worker."""
    from harbor_gym.adapters.tinker.sampling import codec_for, tinker_sampler

    codec = await asyncio.to_thread(codec_for, policy.renderer_name, policy.model_name)
    yield Player(
        codec=codec,
        sample=tinker_sampler(client, stop=codec.stop, max_tokens=policy.max_tokens, temperature=temperature),
        max_tokens=policy.max_tokens,
        max_context_tokens=policy.max_context_tokens,
        max_retries=max_retries,
        transcripts_dir=folder,
    )


@contextlib.asynccontextmanager
async def _player(config: EvalConfig, open_player: OpenPlayer, tasks: int) -> AsyncGenerator[EpisodePlayer]:
    """Yield a player of this process, or of the configuration's executor."""
    if config.rollout_executor is None:
        async with open_player() as player:
            yield player
        return
    from harbor_gym.cluster import open_executor

    with open_executor(
        config.rollout_executor,
        min(config.n_concurrent, tasks * config.episodes),
        output_dir=config.output.absolute() if config.output is not None else None,
        starts_per_sec=config.rollout_starts_per_sec,
    ) as executor:
        yield RemotePlayer(executor, open_player, config.max_retries)


def _transcripts(config: EvalConfig) -> Path | None:
    return config.output.absolute() / "transcripts" if config.output is not None else None


def _require_policy_of_a_run(config: EvalConfig) -> None:
    if isinstance(config.env, AgentEpisodeConfig) or config.api_key_env is not None:
        raise UsageError("--agent and --api-key-env need a chat endpoint: give --model and --base-url")


async def _play_endpoint(
    config: EvalConfig,
    tasks: Sequence[AnyEpisode],
    settings: dict[str, Any],
    task_digests: Mapping[str, str],
    starts: Starts | None,
) -> list[EpisodeResult]:
    """Play with a model behind a chat endpoint."""
    assert config.model is not None
    if config.base_url is None or config.run is not None or config.model_name is not None:
        raise UsageError("--model is evaluated at a chat endpoint: give --base-url, and no --run or --model-name")
    make_endpoint = partial(
        ChatEndpoint,
        config.base_url,
        config.model,
        max_tokens=config.max_tokens or MAX_TOKENS,
        temperature=config.temperature,
        api_key_env=config.api_key_env,
    )
    if isinstance(config.env, AgentEpisodeConfig):
        from harbor_gym.adapters.harbor.agents import require_agent

        require_agent(config.env)
    make_endpoint()  # raises where the key is not set
    await require_endpoint(config.base_url)
    open_player = partial(
        _endpoint_player,
        make_endpoint,
        has_agent=isinstance(config.env, AgentEpisodeConfig),
        max_retries=config.max_retries,
        folder=_transcripts(config),
    )
    with _journal(config, settings, task_digests) as journal:
        return await _evaluate(config, open_player, tasks, journal, starts)


@contextlib.asynccontextmanager
async def _endpoint_player(
    make_endpoint: Callable[[], ChatEndpoint], *, has_agent: bool, max_retries: int, folder: Path | None
) -> AsyncGenerator[EpisodePlayer]:
    """Yield a player for a model behind an endpoint, in this process or a worker."""
    async with make_endpoint() as endpoint:
        player: EpisodePlayer = ChatPlayer(endpoint, max_retries, folder)
        if has_agent:
            from harbor_gym.adapters.harbor.evaluation import AgentPlayer

            player = AgentPlayer(endpoint, max_retries, folder)
        first = FirstAlone(player, endpoint)
        async with first.watching(echo):
            yield first


def _settings(config: EvalConfig) -> dict[str, Any]:
    """Return the settings that must be equal for episodes to count together, without counts and display options."""
    played = {"n_concurrent", "max_retries", "rollout_executor", "rollout_starts_per_sec"}
    other = {
        "paths",
        "registry_path",
        "episodes",
        "attempts",
        "threshold",
        "output",
        "fresh",
        "track",
        *played,
    }
    settings = config.model_dump(mode="json", exclude=other)
    for name in ("task_dir", "require_audit", "refused_findings"):
        settings["env"].pop(name)
    return {**settings, "versions": versions()}


def default_output(paths: Sequence[Path | str]) -> Path:
    """Return a new folder's name for an evaluation without ``--output``, made of its task and the time."""
    name = resolve_shipped(paths[0]).resolve().name if len(paths) == 1 else "tasks"
    folder = Path("runs") / f"eval-{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], numbered) if not path.exists())


def show_report(report: Report, output: Path | None, *, as_json: bool = False) -> None:
    """Print the table; with a folder, also write the JSON and print the commands that show the episodes.

    Args:
        report: The evaluation.
        output: The folder; None writes nothing.
        as_json: Print the JSON instead of the table, and the rest on stderr.
    """
    document = json.dumps(report.as_object(), indent=1)
    echo(format_report(report, width=max(80, shutil.get_terminal_size().columns)), err=as_json)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        replace_text(output / RESULT_NAME, document + "\n")
        echo(f"written: {output / RESULT_NAME}", err=as_json)
        line = f"read its episodes: harbor-gym view {output}, or in one file: harbor-gym report {output}"
        echo(line, err=as_json)
    if as_json:
        echo(document)
