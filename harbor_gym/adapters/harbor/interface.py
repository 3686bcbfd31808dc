"""The rollout interface: Harbor's task configurations in, token-exact rollouts out."""

import asyncio
import importlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeGuard, get_args

from harbor.models.trial.config import AgentConfig, TaskConfig
from pydantic import ValidationError

from harbor_gym._runtime.harbor_versions import base_url_of, require_server
from harbor_gym._runtime.imports import use_litellms_own_prices
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.harbor.agents import has_mark, runs_in_sandbox
from harbor_gym.adapters.harbor.players import EnvPlayer, Player, TrialPlayer
from harbor_gym.adapters.harbor.results import Tokens
from harbor_gym.adapters.harbor.server import HarborServer, ServerJobs, server_environment
from harbor_gym.adapters.harbor.server_player import ServerPlayer
from harbor_gym.adapters.harbor.sources import resolve_task_configs
from harbor_gym.adapters.harbor.strategy import Strategy
from harbor_gym.config import AmbiguousFailures, TerminalEnvConfig, describe_problems, require_fields_of_agents
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.episode.grading import rewards
from harbor_gym.episode.grading.account import RewardAccount
from harbor_gym.errors import UsageError
from harbor_gym.gateway import ConversationCodec, Gateway, SessionLimits
from harbor_gym.outcomes import RetryBudget
from harbor_gym.stragglers import EpisodeClock, Stragglers, equal_places, play_rollouts
from harbor_gym.types import DEFAULT_SANDBOX, ChatCodec, EndReason, Rollout, Sampler, TrainSegments

MODEL = "policy"
"""The policy's model name in the gateway."""

OnRollout = Callable[[Rollout, int, int], object]
"""Called on the event loop as a rollout ends, with it, the number of ended ones, and the total. Must not block."""


class RolloutInterface:
    """Play Harbor tasks with a policy and return the exact tokens that it sampled.

    Calls of :meth:`run` share no state and leave nothing behind.

    Args:
        sampler: Samples the policy's messages.
        codec: Writes conversations as tokens.
        agent: For the strategies ``gateway`` and ``details``: a name of
            :data:`harbor_gym.gateway.agents.AGENTS`, or Harbor's configuration of any agent. An agent that is not
            listed there needs ``{gateway_url}`` in place of its base URL. None is Terminus-2.
        strategy: The loop that plays, and the source of the tokens.
        sandbox: As ``TerminalEnvConfig.sandbox``.
        sandbox_options: Keyword arguments of the sandbox's class.
        n_concurrent: Concurrent rollouts.
        limits: The budgets of each rollout. The strategy ``env`` needs ``max_answer_tokens``, counts only the
            terminal's time for ``time_limit_sec``, and does not support ``max_sampled_tokens``.
        env_settings: Further fields of ``TerminalEnvConfig`` for the strategy ``env``.
        max_retries: Retries of a rollout after infrastructure failures.
        stragglers: How :meth:`run` treats the slowest rollouts of each task; None waits for all.
        reward_key: Name of the reward; None is ``reward``, or the only one there is.
        reward_function: As ``TerminalEnvConfig.reward_function``.
        zero_reward_on_limit: As ``TerminalEnvConfig.zero_reward_on_limit``.
        verify_paths: As ``TerminalEnvConfig.verify_paths``.
        keep_agent_processes: As ``TerminalEnvConfig.keep_agent_processes``.
        ambiguous_failures: As ``TerminalEnvConfig.ambiguous_failures``.
        agent_in_sandbox: Whether the agent runs in the sandbox; None derives it from the agent.
        server: A Harbor server that runs the trials instead of this process. It gives agents their addresses, grades as
            ``harbor run`` does, and reads tasks' paths in its own file system.
        trials_dir: Folder for the trials' folders; None removes them.
        train_segments: For the strategy ``gateway``. ``main``: a rollout's segments are those of the agent's own
            conversation, also after it edited its history. ``all``: side calls (sub-agents, titles) as well.

    Raises:
        UsageError: The arguments contradict each other.
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        codec: ChatCodec | ConversationCodec,
        agent: AgentConfig | str | None = None,
        strategy: Strategy | str = Strategy.GATEWAY,
        sandbox: str = DEFAULT_SANDBOX,
        sandbox_options: Mapping[str, Any] | None = None,
        n_concurrent: int = 8,
        limits: SessionLimits | None = None,
        env_settings: Mapping[str, Any] | None = None,
        max_retries: int = 0,
        stragglers: Stragglers | None = None,
        reward_key: str | None = None,
        reward_function: str | None = None,
        zero_reward_on_limit: bool = False,
        verify_paths: VerifyPaths = "auto",
        keep_agent_processes: bool | None = None,
        ambiguous_failures: AmbiguousFailures = "zero",
        agent_in_sandbox: bool | None = None,
        server: HarborServer | None = None,
        trials_dir: Path | None = None,
        train_segments: TrainSegments = "main",
    ) -> None:
        self._strategy = Strategy(strategy)
        self._sampler, self._codec = sampler, codec
        self._agent = agent if isinstance(agent, AgentConfig) else AgentConfig(name=agent or "terminus-2")
        self._in_sandbox = bool(agent_in_sandbox)
        if agent_in_sandbox is None and server is None:  # a server may have agents that this process has not
            self._in_sandbox = runs_in_sandbox(self._agent)
        self._n_concurrent, self._max_retries = n_concurrent, max_retries
        self._stragglers = stragglers or Stragglers()
        self._limits = limits or SessionLimits()
        settings: dict[str, Any] = {
            "sandbox": sandbox,
            "sandbox_options": dict(sandbox_options or {}),
            "reward_key": reward_key,
            "reward_function": reward_function,
            "zero_reward_on_limit": zero_reward_on_limit,
            "verify_paths": verify_paths,
            "keep_agent_processes": keep_agent_processes,
            "ambiguous_failures": ambiguous_failures,
            "trials_dir": trials_dir,
            "max_turns": self._limits.max_turns,
            "time_limit_sec": self._limits.time_limit_sec,
            **(env_settings or {}),
        }
        try:
            self._config = TerminalEnvConfig(task_dir=Path(), **settings)
        except ValidationError as exc:
            raise UsageError(describe_problems(exc)) from exc
        self._tokens: Tokens = "details" if self._strategy is Strategy.DETAILS else train_segments
        self._account = RewardAccount(rewards.reward_function(reward_key, reward_function), zero_reward_on_limit)
        self._server = server
        if train_segments not in get_args(TrainSegments):
            raise UsageError(f"train_segments is main or all, not {train_segments!r}")
        if train_segments == "all" and self._strategy is not Strategy.GATEWAY:
            raise UsageError(f"train_segments is for the strategy gateway, not {self._strategy}")
        if n_concurrent < 1:
            raise UsageError(f"n_concurrent must be at least 1, got {n_concurrent}")
        if server is not None:
            self._require_server_arguments()
        if self._strategy is Strategy.ENV:
            self._require_env_arguments(agent)
        elif env_settings:
            raise UsageError("env_settings are for the strategy env")

    @classmethod
    def from_config(
        cls,
        config: TerminalEnvConfig,
        sampler: Sampler,
        codec: ChatCodec | ConversationCodec,
        agent: AgentConfig | str | None,
        *,
        agent_in_sandbox: bool | None = None,
        max_context_tokens: int | None = None,
        max_answer_tokens: int = 0,
        train_segments: TrainSegments = "main",
    ) -> Self:
        """Make an interface for an agent, with the sandbox, budgets and reward of an environment's configuration.

        Raises:
            UsageError: The configuration has fields that no agent uses, or the arguments contradict each other.
        """
        require_fields_of_agents(config)
        return cls(
            sampler=sampler,
            codec=codec,
            agent=agent,
            sandbox=config.sandbox,
            sandbox_options=config.sandbox_options,
            limits=SessionLimits(
                max_turns=config.max_turns,
                time_limit_sec=config.time_limit_sec,
                max_context_tokens=max_context_tokens,
                max_answer_tokens=max_answer_tokens,
            ),
            reward_key=config.reward_key,
            reward_function=config.reward_function,
            zero_reward_on_limit=config.zero_reward_on_limit,
            verify_paths=config.verify_paths,
            keep_agent_processes=config.keep_agent_processes,
            ambiguous_failures=config.ambiguous_failures,
            agent_in_sandbox=agent_in_sandbox,
            server=None if config.harbor_server is None else HarborServer(config.harbor_server),
            trials_dir=config.trials_dir,
            train_segments=train_segments,
        )

    async def run_one(self, task_dir: str | Path, *, clock: EpisodeClock | None = None) -> Rollout:
        """Play one task once. Of the interface's ``stragglers`` only the deadline applies, from this call on.

        Args:
            task_dir: The task's directory.
            clock: The clock of an episode in the caller's own group, whose deadline applies instead.

        Returns:
            The rollout, see :meth:`run`.

        Raises:
            TaskError, UsageError: As :meth:`run`.
        """
        ((task, path),) = await resolve_task_configs([TaskConfig(path=Path(task_dir))])
        async with self._player() as player:
            if clock is not None:
                return await self._play(player, task, path, clock)
            alone = replace(self._stragglers, over_sample=1.0)
            (rollout,), _ = await play_rollouts(1, alone, lambda _, own: self._play(player, task, path, own))
            return replace(rollout, task_name=path.name)

    async def run(self, tasks: Sequence[TaskConfig], *, on_rollout: OnRollout | None = None) -> list[Rollout]:
        """Play each task once; repeat a task in ``tasks`` to play it several times.

        Cancelling this call ends every trial and waits until its sandbox has stopped. With ``over_sample`` in the
        interface's ``stragglers``, equal entries of ``tasks`` are a group: more rollouts are started, and the first to
        end with a verdict are returned. All of them should fit in ``n_concurrent``.

        Args:
            tasks: Harbor's configurations of tasks: a local path, a path in a git repository with or without a
                commit, or a name in Harbor's registry. All are fetched before the first sandbox starts, each once.
            on_rollout: Called as each rollout ends.

        Returns:
            The rollouts in the order of ``tasks``. A rollout that the infrastructure lost has its error and no reward.
            One without an answer by the batch's deadline has no reward, and the end reason ``DROPPED``. A group's first
            rollout has the group's ``stragglers/…`` in its metrics.

        Raises:
            TaskError: A task is wrong, or can't be fetched.
            UsageError: The agent's options lack ``{gateway_url}``, or the sandbox's settings can't be used.
        """
        resolved = await resolve_task_configs(tasks)
        slots, played = asyncio.Semaphore(self._n_concurrent), dict[int, Rollout]()

        def note(place: int, rollout: Rollout) -> None:
            played[place] = rollout
            if on_rollout is not None:
                on_rollout(rollout, len(played), len(resolved))

        async with self._player() as player:

            async def play_places(places: Sequence[int]) -> None:
                async def play(number: int, clock: EpisodeClock) -> Rollout:
                    # Over-sampled rollouts are beyond the places; all places of such a group have one task.
                    task, path = resolved[places[min(number, len(places) - 1)]]
                    async with slots:
                        rollout = await self._play(player, task, path, clock)
                    if not is_over_sampled:
                        note(places[number], rollout)
                    return rollout

                rollouts, closed = await play_rollouts(len(places), self._stragglers, play)
                if self._stragglers.is_active:
                    rollouts[0] = replace(rollouts[0], metrics={**rollouts[0].metrics, **closed.metrics})
                for place, rollout in zip(places, rollouts, strict=True):
                    if rollout.end_reason is EndReason.DROPPED:
                        rollout = replace(rollout, task_name=resolved[place][1].name)
                    if place in played:
                        played[place] = rollout
                    else:
                        note(place, rollout)

            is_over_sampled = self._stragglers.over_sample > 1
            groups = [list(range(len(resolved)))] if resolved else []
            if is_over_sampled:
                groups = equal_places(task.model_dump_json() for task, _ in resolved)
            async with task_group() as running:
                for places in groups:
                    running.create_task(play_places(places))
        return [played[place] for place in range(len(resolved))]

    async def _play(self, player: Player, task: TaskConfig, path: Path, clock: EpisodeClock) -> Rollout:
        """Play a task; after an infrastructure failure, retry it before the batch's deadline."""
        budget, failed = RetryBudget(self._max_retries), 0
        while True:
            rollout = await player.play(task, path, clock)
            error = rollout.error
            if error is None or not clock.restart() or not await budget.allows(error, failed):
                return replace(rollout, metrics={**rollout.metrics, "infra/failed_attempts": float(failed)})
            failed += 1

    @asynccontextmanager
    async def _player(self) -> AsyncGenerator[Player]:
        """Yield the player of the strategy, with the resources that its rollouts share."""
        if self._strategy is Strategy.ENV:
            assert is_chat_codec(self._codec)
            yield EnvPlayer(self._sampler, self._codec, self._limits, self._config)
            return
        if self._server is not None:
            async with self._server_player(self._server) as player:
                yield player
            return
        use_litellms_own_prices()
        if self._agent.import_path is None and self._agent.name == "terminus-2":
            # The import takes seconds and would block the event loop in the first trial.
            await asyncio.to_thread(importlib.import_module, "litellm")
        with tempfile.TemporaryDirectory(prefix="harbor-gym-trials-", ignore_cleanup_errors=True) as temporary:
            async with Gateway(self._sampler, self._codec, model=MODEL) as gateway:
                yield TrialPlayer(
                    gateway=gateway,
                    agent=self._agent,
                    in_sandbox=self._in_sandbox,
                    config=self._config,
                    limits=self._limits,
                    account=self._account,
                    trials_dir=self._config.trials_dir or Path(temporary),
                    tokens=self._tokens,
                )

    @asynccontextmanager
    async def _server_player(self, server: HarborServer) -> AsyncGenerator[ServerPlayer]:
        async with aclosing(ServerJobs(server)) as jobs, Gateway(self._sampler, self._codec, model=MODEL) as gateway:
            yield ServerPlayer(
                server=server,
                jobs=jobs,
                gateway=gateway,
                agent=self._agent,
                environment=server_environment(self._config.sandbox, self._config.sandbox_options),
                limits=self._limits,
                account=self._account,
                ambiguous_failures=self._config.ambiguous_failures,
                trials_dir=self._config.trials_dir,
                tokens=self._tokens,
            )

    def _require_server_arguments(self) -> None:
        require_server()
        if self._strategy is Strategy.ENV:
            raise UsageError("the strategy env is our own loop, and a Harbor server can't run it: give an agent")
        if self._config.verify_paths not in ("auto", "off") or self._config.keep_agent_processes is not None:
            raise UsageError("Harbor's server grades as harbor run does, without verify_paths and keep_agent_processes")
        if has_mark(self._agent) or base_url_of(self._agent) is not None:
            raise UsageError("Harbor's server gives an agent its address: leave {gateway_url} and base_url out of it")

    def _require_env_arguments(self, agent: AgentConfig | str | None) -> None:
        if agent is not None:
            raise UsageError("the strategy env is our own loop and takes no agent")
        if not is_chat_codec(self._codec):
            raise UsageError("the strategy env needs a ChatCodec: prompt, next_turn and text")
        if not self._limits.max_answer_tokens:
            raise UsageError("the strategy env needs limits.max_answer_tokens, the sampler's limit for one message")
        if self._limits.max_sampled_tokens is not None:
            raise UsageError("the strategy env has no limits.max_sampled_tokens: use max_turns or max_context_tokens")


def is_chat_codec(codec: ChatCodec | ConversationCodec) -> TypeGuard[ChatCodec]:
    """Return whether a codec can continue from sampled tokens without a gateway."""
    return hasattr(codec, "next_turn")
