"""The rollout interface: Harbor's task configurations in, token-exact rollouts out."""

import asyncio
import importlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from harbor.models.trial.config import AgentConfig, TaskConfig

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.harbor_versions import base_url_of, require_server
from harbor_gym._runtime.imports import use_litellms_own_prices
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.harbor.agents import harbors_agent, has_mark, runs_in_sandbox
from harbor_gym.adapters.harbor.players import EnvPlayer, Player, TrialPlayer
from harbor_gym.adapters.harbor.server import HarborServer, ServerJobs, require_answer
from harbor_gym.adapters.harbor.server_player import ServerPlayer
from harbor_gym.adapters.harbor.sources import resolve_task_configs
from harbor_gym.config import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_N_CONCURRENT,
    AgentEpisodeConfig,
    EpisodeConfig,
    TerminalEnvConfig,
    aliases,
    read_episode,
)
from harbor_gym.episode.grading.account import RewardAccount
from harbor_gym.errors import UsageError
from harbor_gym.gateway import ConversationCodec, Gateway, SessionLimits
from harbor_gym.outcomes import RetryBudget
from harbor_gym.stragglers import EpisodeClock, Stragglers, equal_places, play_rollouts
from harbor_gym.tasks.receipts import require_audited
from harbor_gym.transcripts import traced
from harbor_gym.types import ChatCodec, EndReason, Rollout, Sampler

MODEL = "policy"
"""The policy's model name in the gateway."""

OnRollout = Callable[[Rollout, int, int], object]
"""Called on the event loop as a rollout ends, with it, the number of ended ones, and the total. Must not block."""


class RolloutInterface:
    """Play Harbor tasks with a policy and return the exact tokens that it sampled.

    Calls of :meth:`run` share no state and leave nothing behind.

    Args:
        config: How each episode is played, or its fields: with ``agent`` those of
            :class:`harbor_gym.config.AgentEpisodeConfig`, else those of :class:`harbor_gym.TerminalEnvConfig`. Each
            task replaces ``task_dir``. None is Terminus-2 on ``local``.
        sampler: Samples the policy's messages.
        codec: Writes conversations as tokens; our own loop needs a :class:`harbor_gym.types.ChatCodec`.
        limits: The budgets in tokens, and of an agent's requests. Our own loop needs ``max_answer_tokens``, and has no
            ``max_sampled_tokens``. ``max_turns`` and ``time_limit_sec`` are the configuration's.
        n_concurrent: Concurrent episodes.
        max_retries: Retries of an episode after failures of the infrastructure.
        stragglers: How :meth:`run` treats the slowest episodes of each task; None waits for all.
        pool_size: Sandboxes that a warm pool keeps ready for each task of our own loop; None starts one per episode.
            :func:`harbor_gym.pool.close_shared_pools` closes the pools.
        server: The Harbor server at ``config.harbor_server``, with settings of its own. It gives agents their
            addresses, grades as ``harbor run`` does, and reads tasks' paths in its own file system.
        earlier: Fields of the configuration by their earlier names, :data:`harbor_gym.config.aliases.ROLLOUTS`.

    Raises:
        UsageError: The arguments contradict each other.
    """

    def __init__(
        self,
        config: EpisodeConfig | Mapping[str, Any] | None = None,
        sampler: Sampler | None = None,
        codec: ChatCodec | ConversationCodec | None = None,
        *,
        limits: SessionLimits | None = None,
        n_concurrent: int = DEFAULT_N_CONCURRENT,
        max_retries: int = DEFAULT_MAX_RETRIES,
        stragglers: Stragglers | None = None,
        pool_size: int | None = None,
        server: HarborServer | None = None,
        **earlier: Any,
    ) -> None:
        if sampler is None or codec is None:
            raise UsageError("RolloutInterface needs a sampler and a codec")
        if n_concurrent < 1:
            raise UsageError(f"n_concurrent must be at least 1, got {n_concurrent}")
        limits = limits or SessionLimits()
        fields = _fields(config, earlier, limits)
        if server is not None:
            fields["harbor_server"] = server.url
        self._config = read_episode(fields, "an episode")
        budgets = {"max_turns": self._config.max_turns, "time_limit_sec": self._config.time_limit_sec}
        self._limits = limits.model_copy(update=budgets)
        self._sampler, self._codec = sampler, codec
        self._n_concurrent, self._max_retries = n_concurrent, max_retries
        self._stragglers = stragglers or Stragglers()
        self._account, self._pool_size = RewardAccount.of(self._config), pool_size
        if isinstance(self._config, TerminalEnvConfig):
            self._require_own_arguments()
        else:
            if pool_size is not None:
                raise UsageError("an agent of Harbor's starts its own sandbox: leave pool_size out")
            self._agent, self._server = harbors_agent(self._config), server
            if server is None and self._config.harbor_server is not None:
                self._server = HarborServer(self._config.harbor_server)
            if self._server is not None:
                _require_relayed(self._agent)
            self._in_sandbox = bool(self._config.agent_in_sandbox)
            if self._config.agent_in_sandbox is None and self._server is None:  # a server may have other agents
                self._in_sandbox = runs_in_sandbox(self._agent)

    async def run_one(self, task_dir: StrPath, *, clock: EpisodeClock | None = None) -> Rollout:
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
        await asyncio.to_thread(require_audited, path, self._config)
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
            TaskError: A task is wrong, can't be fetched, or is refused by the configuration's ``require_audit``.
            UsageError: The agent's options lack ``{gateway_url}``, the sandbox's settings can't be used, or nothing
                answers at the server's address.
        """
        resolved = await resolve_task_configs(tasks)
        for _, path in resolved:
            await asyncio.to_thread(require_audited, path, self._config)
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
            rollout = await traced(player.play)(task, path, clock)
            error = rollout.error
            if error is None or not clock.restart() or not await budget.allows(error, failed):
                return replace(rollout, metrics={**rollout.metrics, "infra/failed_attempts": float(failed)})
            failed += 1

    @asynccontextmanager
    async def _player(self) -> AsyncGenerator[Player]:
        """Yield the player of the episodes, with the resources that they share."""
        config = self._config
        if isinstance(config, TerminalEnvConfig):
            assert is_chat_codec(self._codec)
            yield EnvPlayer(self._sampler, self._codec, self._limits, config, self._pool_size)
            return
        if self._server is not None:
            async with self._server_player(config, self._server) as player:
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
                    config=config,
                    limits=self._limits,
                    account=self._account,
                    trials_dir=config.trials_dir or Path(temporary),
                )

    @asynccontextmanager
    async def _server_player(self, config: AgentEpisodeConfig, server: HarborServer) -> AsyncGenerator[ServerPlayer]:
        await require_answer(server)
        async with aclosing(ServerJobs(server)) as jobs, Gateway(self._sampler, self._codec, model=MODEL) as gateway:
            yield ServerPlayer(
                server=server,
                jobs=jobs,
                gateway=gateway,
                agent=self._agent,
                config=config,
                limits=self._limits,
                account=self._account,
            )

    def _require_own_arguments(self) -> None:
        if not is_chat_codec(self._codec):
            raise UsageError("our own loop needs a ChatCodec: prompt, next_turn and text")
        if not self._limits.max_answer_tokens:
            raise UsageError("our own loop needs max_answer_tokens, the sampler's limit for one message")
        if self._limits.max_sampled_tokens is not None:
            raise UsageError("our own loop has no max_sampled_tokens: use max_turns or max_context_tokens")


def _fields(
    config: EpisodeConfig | Mapping[str, Any] | None, earlier: dict[str, Any], limits: SessionLimits
) -> dict[str, Any]:
    """Return the fields of the configuration, also those that the arguments of earlier versions give."""
    strategy = str(earlier.pop("strategy", "gateway"))
    if strategy not in ("env", "gateway", "details"):
        raise UsageError(f"there is no strategy {strategy!r}: env, gateway or details")
    if unknown := sorted(earlier.keys() - aliases.ROLLOUTS.keys()):
        raise TypeError(f"RolloutInterface has no argument {unknown[0]!r}")
    fields = aliases.fields_of(config)
    if config is None and strategy != "env":
        earlier["agent"] = earlier.get("agent") or "terminus-2"
    for name in limits.model_fields_set & {"max_turns", "time_limit_sec"}:
        fields.setdefault(name, getattr(limits, name))
    if strategy == "details":
        fields["token_source"] = "details"
    try:
        fields = aliases.moved({"config": fields, **earlier}, aliases.ROLLOUTS)["config"]
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    if strategy == "env" and fields.get("agent") is not None:
        raise UsageError("the strategy env is our own loop and takes no agent")
    return fields


def _require_relayed(agent: AgentConfig) -> None:
    require_server()
    if has_mark(agent) or base_url_of(agent) is not None:
        raise UsageError("Harbor's server gives an agent its address: leave {gateway_url} and base_url out of it")


def is_chat_codec(codec: ChatCodec | ConversationCodec) -> TypeGuard[ChatCodec]:
    """Return whether a codec can continue from sampled tokens without a gateway."""
    return hasattr(codec, "next_turn")
