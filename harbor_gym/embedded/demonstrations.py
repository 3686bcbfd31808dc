"""Demonstrations for warm-starting a tiny policy: a scripted demonstrator plays a task in the real environment.

It plays in our own loop, or behind the gateway as the model of one of Harbor's agents. In both cases a conversation has
the messages that a policy in the demonstrator's place sees and learns.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.config.aliases import fields_of
from harbor_gym.embedded.demonstrator import Demonstration, Demonstrator, load_script
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.formats import prompts
from harbor_gym.outcomes import RetryBudget
from harbor_gym.types import ActionFormat, EndReason

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig

_log = logging.getLogger(__name__)

_RETRIES = 2
"""Fresh sandboxes that an episode may get before an infrastructure failure is passed on."""

type _Play = Callable[[TerminalEnvConfig, Demonstrator], Awaitable[Demonstration]]
"""Plays one episode with a fresh demonstrator."""


async def play_demonstrations(
    task_dir: Path,
    *,
    sandbox: str,
    agent: "AgentConfig | str | None" = None,
    action_format: ActionFormat = ActionFormat.TERMINUS_JSON,
    episodes: int = 200,
    seed: int = 0,
    concurrency: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> list[Demonstration]:
    """Play a task's demonstrator and return its episodes, good and bad ones alike. Success rate and turns are logged.

    The same seed gives the same moves as long as the task shows the same text; the order of the result does not
    depend on ``concurrency``.

    Args:
        task_dir: A Harbor task directory with ``demonstrations/moves.json``.
        sandbox: As ``TerminalEnvConfig.sandbox``.
        agent: One of Harbor's agents, which types the moves; it must read terminus-json-plain, as Terminus-2 does. None
            plays in our own loop.
        action_format: How the messages are written: one of ``demonstrator.WRITTEN_FORMATS``; with an agent the default.
        episodes: Number of episodes.
        seed: Seed of the demonstrator's choices.
        concurrency: Sandboxes at once.
        progress: Called after each episode with the number finished and the number asked for.

    Raises:
        TaskError: The task is malformed or has no demonstrator.
        UsageError: The agent reads other messages.
        HarborGymError: The infrastructure failed again and again.
    """
    play_one = play_in_env if agent is None else _player_of(agent)
    script = await asyncio.to_thread(load_script, task_dir)
    config = TerminalEnvConfig(
        task_dir=task_dir, sandbox=sandbox, max_turns=script.max_turns, action_format=action_format
    )
    slots = asyncio.Semaphore(concurrency)
    finished = 0

    async def play(index: int) -> Demonstration:
        nonlocal finished
        async with slots:  # an attempt after a lost one makes the same choices
            demonstration = await RetryBudget(_RETRIES).run(
                lambda: play_one(config, Demonstrator(script, random.Random(f"{seed}/{index}")))
            )
        finished += 1
        if progress is not None:
            progress(finished, episodes)
        return demonstration

    async with task_group() as group:
        tasks = [group.create_task(play(index)) for index in range(episodes)]
    played = [task.result() for task in tasks]
    _log.info("demonstrations of %s: %s", task_dir, summary(played))
    return played


def summary(played: Sequence[Demonstration]) -> str:
    """Return one line on success rate, turns and end reasons."""
    if not played:
        return "no episodes"
    reasons = sorted({demonstration.end_reason.value for demonstration in played})
    counts = ", ".join(f"{sum(item.end_reason == reason for item in played)} {reason}" for reason in reasons)
    solved = fmean(item.reward >= 1 for item in played)
    return f"{len(played)} episodes, {solved:.0%} solved, {fmean(item.turns for item in played):.2f} turns; {counts}"


def half_solved(played: Sequence[Demonstration], count: int) -> list[Demonstration]:
    """Return ``count`` demonstrations in their order, half of which solved the task, as far as there are so many.

    What a pretrained model learns from a few demonstrations that mostly fail may solve nothing, and reinforcement
    learning begins with what is solved; after those that all succeed it has little left to learn.
    """
    solved = [item for item in played if item.reward >= 1]
    others = [item for item in played if item.reward < 1]
    most = max(count // 2, count - len(others))
    kept = {id(item) for item in (*solved[:most], *others[: count - len(solved[:most])])}
    return [item for item in played if id(item) in kept]


async def play_in_env(config: TerminalEnvConfig, demonstrator: Demonstrator) -> Demonstration:
    """Play one episode in our own loop.

    Args:
        config: The task, the sandbox and ``max_turns``.
        demonstrator: A fresh one.

    Raises:
        HarborGymError: The sandbox or the verifier failed.
    """
    async with AsyncTerminalGymEnv(config) as env:
        observation, info = await env.reset()
        messages = prompts.opening(config, info.get("instruction", ""), observation).messages
        turns, reward, done = 0, 0.0, False
        while not done:
            text = demonstrator.answer(observation).text(config.action_format)
            messages.append({"role": "assistant", "content": text})
            observation, reward, done, info = await env.step(text)
            turns += 1
            if not done:
                messages.append({"role": "user", "content": observation})
        return Demonstration(tuple(messages), reward, turns, info.get("end_reason", EndReason.COMPLETED))


def _player_of(agent: "AgentConfig | str") -> _Play:
    from harbor_gym.adapters.harbor.agents import harbors_agent, require_terminus_json
    from harbor_gym.embedded.agent_demonstrations import play_with_agent

    def with_agent(config: TerminalEnvConfig) -> AgentEpisodeConfig:
        return AgentEpisodeConfig.model_validate({**fields_of(config), "agent": agent})

    require_terminus_json(harbors_agent(with_agent(TerminalEnvConfig(task_dir=""))))
    return lambda config, demonstrator: play_with_agent(with_agent(config), demonstrator)
