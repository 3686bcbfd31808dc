"""Play the episodes of an evaluation, by the tinker adapter or against a chat endpoint, and print their outcomes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harbor_gym import sandboxes
from harbor_gym.adapters.tinker.policies import MAX_TOKENS, EvalConfig, EvaluatedPolicy, find_policy
from harbor_gym.cli.shared import echo
from harbor_gym.cluster.workers import require_shared_rate
from harbor_gym.config import TerminalEnvConfig, require_fields_of_agents
from harbor_gym.errors import UsageError
from harbor_gym.evaluation import (
    ChatPlayer,
    EpisodePlayer,
    EpisodeResult,
    Journal,
    OpenPlayer,
    Player,
    Progress,
    RemotePlayer,
    Report,
    describe_episode,
    evaluate,
    format_report,
    summarize,
)
from harbor_gym.samplers import ChatEndpoint
from harbor_gym.samplers.endpoints import require_endpoint
from harbor_gym.tasks import find_tasks


def evaluate_policy(config: EvalConfig) -> Report:
    """Play episodes of each task with a policy. Blocks until all are over; each episode's outcome is printed.

    Raises:
        HarborGymError: A setting, a task or the sandbox can't be used, before anything is started; or the service of
            the policy failed.
    """
    require_shared_rate(config.rollout_executor, config.rollout_starts_per_sec)
    sandboxes.preflight(sandboxes.environment_config(config.env.sandbox))
    if config.base_url is not None and config.model is None:
        asyncio.run(require_endpoint(config.base_url))
    tasks = [config.env.model_copy(update={"task_dir": task}) for task in find_tasks(list(config.paths))]
    if config.model is None:
        _require_policy_of_a_run(config)
        results = asyncio.run(_play(config, find_policy(config), tasks))
    else:
        results = asyncio.run(_play_endpoint(config, tasks))
    ks = [k for k in config.attempts if 1 <= k <= config.episodes]
    return summarize(results, threshold=config.threshold, ks=ks)


async def _play(config: EvalConfig, policy: EvaluatedPolicy, tasks: Sequence[TerminalEnvConfig]) -> list[EpisodeResult]:
    """Serve the policy and play."""
    from harbor_gym.embedded.service import sampling_client

    async with sampling_client(policy, echo) as client:
        open_player = partial(
            _policy_player, client, policy, config.temperature, retries=config.retries, folder=_transcripts(config)
        )
        async with _player(config, open_player, len(tasks)) as player:
            return await evaluate(
                tasks, player, episodes=config.episodes, concurrency=config.concurrency, on_episode=_show_episode
            )


@contextlib.asynccontextmanager
async def _policy_player(
    client: Any, policy: EvaluatedPolicy, temperature: float, *, retries: int, folder: Path | None
) -> AsyncGenerator[Player]:
    """Yield what plays a policy of the tinker adapter, in whichever process this runs."""
    from harbor_gym.adapters.tinker.sampling import codec_for, tinker_sampler

    codec = await asyncio.to_thread(codec_for, policy.renderer_name, policy.model_name)
    yield Player(
        codec=codec,
        sample=tinker_sampler(client, stop=codec.stop, max_tokens=policy.max_tokens, temperature=temperature),
        max_tokens=policy.max_tokens,
        max_context_tokens=policy.max_context_tokens,
        retries=retries,
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
        min(config.concurrency, tasks * config.episodes),
        output_dir=config.output.absolute() if config.output is not None else None,
        starts_per_sec=config.rollout_starts_per_sec,
    ) as executor:
        yield RemotePlayer(executor, open_player, config.retries)


def _transcripts(config: EvalConfig) -> Path | None:
    return config.output.absolute() / "transcripts" if config.output is not None else None


def _require_policy_of_a_run(config: EvalConfig) -> None:
    if config.agent is not None or config.agent_options or config.api_key_env is not None:
        raise UsageError("--agent and --api-key-env need a chat endpoint: give --model and --base-url")


async def _play_endpoint(config: EvalConfig, tasks: Sequence[TerminalEnvConfig]) -> list[EpisodeResult]:
    """Play with a model behind a chat endpoint, from where an earlier evaluation in the output folder stopped."""
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
    if config.agent is not None:
        from harbor_gym.adapters.harbor.agents import agent_of

        agent_of(config.agent, config.agent_options)
        require_fields_of_agents(config.env)
    make_endpoint()  # raises where the key is not set
    await require_endpoint(config.base_url)
    journal = Journal(config.output, _settings(config)) if config.output is not None else None
    played = journal.graded if journal is not None else []
    progress = Progress(len(tasks) * config.episodes, config.threshold, played)
    if played:
        echo(f"{len(played)} episodes were played before")

    def on_episode(result: EpisodeResult) -> None:
        if journal is not None:
            journal.add(result)
        echo(progress.line(result))

    open_player = partial(
        _endpoint_player,
        make_endpoint,
        config.agent,
        config.agent_options,
        retries=config.retries,
        folder=_transcripts(config),
    )
    async with _player(config, open_player, len(tasks)) as player:
        return await evaluate(
            tasks,
            player,
            episodes=config.episodes,
            concurrency=config.concurrency,
            on_episode=on_episode,
            played=played,
        )


@contextlib.asynccontextmanager
async def _endpoint_player(
    make_endpoint: Callable[[], ChatEndpoint],
    agent: str | None,
    agent_options: dict[str, Any],
    *,
    retries: int,
    folder: Path | None,
) -> AsyncGenerator[EpisodePlayer]:
    """Yield what plays a model behind an endpoint, in whichever process this runs."""
    async with make_endpoint() as endpoint:
        if agent is None:
            yield ChatPlayer(endpoint, retries, folder)
            return
        from harbor_gym.adapters.harbor.agents import agent_of
        from harbor_gym.adapters.harbor.evaluation import AgentPlayer

        yield AgentPlayer(endpoint, agent_of(agent, agent_options), retries, folder)


def _settings(config: EvalConfig) -> dict[str, Any]:
    """Return what must be the same for episodes to count together: all but how many, and how they are shown."""
    played = {"concurrency", "retries", "rollout_executor", "rollout_starts_per_sec"}
    other = {"paths", "episodes", "attempts", "threshold", "output", *played}
    settings = config.model_dump(mode="json", exclude=other)
    settings["env"].pop("task_dir")
    return settings


def _show_episode(result: EpisodeResult) -> None:
    """Print a line an episode."""
    echo(describe_episode(result))


def show_report(report: Report, output: Path | None) -> None:
    """Print the table, and write the JSON where a folder is given."""
    echo(format_report(report))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "eval.json").write_text(json.dumps(report.as_object(), indent=1) + "\n", encoding="utf-8")
        echo(f"written: {output / 'eval.json'}")
