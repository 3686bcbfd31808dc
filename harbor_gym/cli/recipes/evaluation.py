"""Play the episodes of an evaluation, by the tinker adapter or against a chat endpoint, and print their outcomes."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from harbor_gym import sandboxes
from harbor_gym.adapters.tinker.policies import MAX_TOKENS, EvalConfig, EvaluatedPolicy, find_policy
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.evaluation import (
    ChatPlayer,
    EpisodePlayer,
    EpisodeResult,
    Journal,
    Player,
    Progress,
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

    async with sampling_client(policy, typer.echo) as client:
        from harbor_gym.adapters.tinker.sampling import codec_for, tinker_sampler

        codec = await asyncio.to_thread(codec_for, policy.renderer_name, policy.model_name)
        sample = tinker_sampler(client, stop=codec.stop, max_tokens=policy.max_tokens, temperature=config.temperature)
        player = Player(
            codec=codec,
            sample=sample,
            max_tokens=policy.max_tokens,
            max_context_tokens=policy.max_context_tokens,
            retries=config.retries,
            transcripts_dir=config.output / "transcripts" if config.output is not None else None,
        )
        return await evaluate(
            tasks, player, episodes=config.episodes, concurrency=config.concurrency, on_episode=_show_episode
        )


def _require_policy_of_a_run(config: EvalConfig) -> None:
    if config.agent is not None or config.agent_options or config.api_key_env is not None:
        raise UsageError("--agent and --api-key-env need a chat endpoint: give --model and --base-url")


async def _play_endpoint(config: EvalConfig, tasks: Sequence[TerminalEnvConfig]) -> list[EpisodeResult]:
    """Play with a model behind a chat endpoint, from where an earlier evaluation in the output folder stopped."""
    assert config.model is not None
    if config.base_url is None or config.run is not None or config.model_name is not None:
        raise UsageError("--model is evaluated at a chat endpoint: give --base-url, and no --run or --model-name")
    endpoint = ChatEndpoint(
        config.base_url,
        config.model,
        max_tokens=config.max_tokens or MAX_TOKENS,
        temperature=config.temperature,
        api_key_env=config.api_key_env,
    )
    await require_endpoint(config.base_url)
    journal = Journal(config.output, _settings(config)) if config.output is not None else None
    played = journal.graded if journal is not None else []
    progress = Progress(len(tasks) * config.episodes, config.threshold, played)
    if played:
        typer.echo(f"{len(played)} episodes were played before")

    def on_episode(result: EpisodeResult) -> None:
        if journal is not None:
            journal.add(result)
        typer.echo(progress.line(result))

    async with endpoint:
        return await evaluate(
            tasks,
            _endpoint_player(config, endpoint),
            episodes=config.episodes,
            concurrency=config.concurrency,
            on_episode=on_episode,
            played=played,
        )


def _endpoint_player(config: EvalConfig, endpoint: ChatEndpoint) -> EpisodePlayer:
    folder = config.output / "transcripts" if config.output is not None else None
    if config.agent is None:
        return ChatPlayer(endpoint, config.retries, folder)
    from harbor_gym.adapters.harbor.agents import agent_of
    from harbor_gym.adapters.harbor.evaluation import AgentPlayer

    return AgentPlayer(endpoint, agent_of(config.agent, config.agent_options), config.retries, folder)


def _settings(config: EvalConfig) -> dict[str, Any]:
    """Return what must be the same for episodes to count together: all but how many, and how they are shown."""
    other = {"paths", "episodes", "attempts", "threshold", "concurrency", "retries", "output"}
    settings = config.model_dump(mode="json", exclude=other)
    settings["env"].pop("task_dir")
    return settings


def _show_episode(result: EpisodeResult) -> None:
    """Print a line an episode."""
    typer.echo(describe_episode(result))


def show_report(report: Report, output: Path | None) -> None:
    """Print the table, and write the JSON where a folder is given."""
    typer.echo(format_report(report))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "eval.json").write_text(json.dumps(report.as_object(), indent=1) + "\n", encoding="utf-8")
        typer.echo(f"written: {output / 'eval.json'}")
