"""The harness: plays episodes in this package's own loop, or with a Harbor agent, through verifiers' endpoint."""

import asyncio
import weakref
from pathlib import Path
from typing import Any, Self, override

import verifiers.v1 as vf
from pydantic import Field, model_validator
from verifiers.v1.clients import ModelContext
from verifiers.v1.errors import TaskError
from verifiers.v1.runtimes import ProgramResult, Runtime

from harbor_gym.adapters.harbor.agents import harbors_agent
from harbor_gym.adapters.verifiers.outcome import as_rollout_error
from harbor_gym.adapters.verifiers.players import Endpoint, play
from harbor_gym.adapters.verifiers.taskset import HarborTaskData
from harbor_gym.config import (
    AgentEpisodeConfig,
    AnyEpisode,
    TerminalEnvConfig,
    aliases,
    read_episode,
    require_one_conversation,
)
from harbor_gym.episode.task import require_sandbox
from harbor_gym.errors import HarborGymError, SandboxThrottledError, UsageError
from harbor_gym.outcomes import pause_sec
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.samplers.statuses import EngineSettingsError, settings_error
from harbor_gym.sandboxes import environment_config
from harbor_gym.types import ActionFormat

_FROM_TASK = ("task_dir", "step_rewards")
"""Fields that ``terminal_env`` can't set."""


class HarborHarnessConfig(vf.HarnessConfig):
    """How episodes are played."""

    terminal_env: dict[str, Any] = Field(default_factory=dict)
    """Fields of the episode: with ``agent`` those of :class:`harbor_gym.config.AgentEpisodeConfig`, else those of
    :class:`harbor_gym.TerminalEnvConfig`, except ``step_rewards``, since verifiers takes one reward per episode."""

    pool_size: int | None = Field(default=None, ge=1)
    """Sandboxes that a warm pool keeps ready for each task in each process; None starts one per episode."""

    ends_without_tool_call: bool = False
    """Whether, with ``action_format = "bash-tool"``, an answer without a tool call ends the policy's work."""

    _read_earlier_names = aliases.reading(aliases.VERIFIERS)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if unfit := [name for name in _FROM_TASK if name in self.terminal_env]:
            raise ValueError(f"terminal_env can't set {', '.join(unfit)}: the task or the harness does")
        if self.terminal_env.get("action_format") == ActionFormat.KEYSTROKES:
            raise ValueError(
                "terminal_env can't set action_format = 'keystrokes': verifiers' renderers strip white space around a "
                "message, and Enter with it. Use terminus-json-plain or bash-tool"
            )
        try:
            config = self.episode()
            environment_config(config.sandbox, options=config.sandbox_options)
            require_one_conversation(config, "verifiers")
            if isinstance(config, AgentEpisodeConfig):
                harbors_agent(config)
        except UsageError as exc:
            raise ValueError(str(exc)) from exc
        if isinstance(config, AgentEpisodeConfig) and self.pool_size is not None:
            raise ValueError("an agent of Harbor's starts its own sandbox: leave pool_size out")
        return self

    def episode(self, task_dir: Path = Path()) -> AnyEpisode:
        """Return how a task's episodes are played."""
        return read_episode({**self.terminal_env, "task_dir": task_dir}, "terminal_env")


class SharedState:
    """State that the harnesses of one environment share, since verifiers makes a harness for each episode."""

    def __init__(self) -> None:
        self._pools: weakref.WeakSet[WarmPool] = weakref.WeakSet()
        self._answered: set[str] = set()
        self._refusals: dict[str, str] = {}

    def pool(self, config: TerminalEnvConfig, size: int) -> WarmPool:
        """Return the running loop's pool for a configuration."""
        pool = shared_pool(config, size=size)
        self._pools.add(pool)
        return pool

    async def close(self) -> None:
        """Close the warm pools that were used."""
        async with asyncio.TaskGroup() as group:
            for pool in list(self._pools):
                group.create_task(pool.close())

    def note_refusal(self, trace: vf.Trace) -> None:
        """Remember a refused key or model, so that later episodes fail at once; in verifiers no episode ends a run.

        A model that has answered before is not refused by its settings, but by a server that restarts.
        """
        self._answered |= {call.model for call in trace.calls if call.error is None and call.model is not None}
        call = trace.calls[-1] if trace.calls else None
        if call is None or call.error is None or call.model is None or call.error.status_code is None:
            return
        status, message = call.error.status_code, call.error.message
        if settings_error(message, status, message, has_answered=self.has_answered(call.model)) is not None:
            self._refusals[call.model] = call.error.message

    def has_answered(self, model: str) -> bool:
        """Return whether the model has answered in an earlier episode."""
        return model in self._answered

    def require_not_refused(self, model: str) -> None:
        """Raise if the model or the key was refused in an earlier episode.

        Raises:
            EngineSettingsError: The model or the key was refused.
        """
        if (refusal := self._refusals.get(model)) is not None:
            raise EngineSettingsError(
                f"not played: {model} was refused in an earlier episode ({refusal}). Correct the client's key, its "
                "address or the model's name, and start again"
            )


class HarborTerminalHarness(vf.Harness[HarborHarnessConfig]):
    """Plays and verifies a Harbor task in a Harbor sandbox. verifiers records the tokens at its endpoint.

    verifiers' own runtime is not used; ``subprocess`` is the cheapest, as in :class:`HarborEnvConfig`.
    """

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False
    SUPPORTS_MCP = False

    def __init__(self, config: HarborHarnessConfig) -> None:
        super().__init__(config)
        self.shared = SharedState()
        """The environment's shared state, if that is a :class:`HarborTerminalEnv`."""

    async def preflight(self) -> None:
        """Check that a sandbox can start here, or that the installed Harbor can use a server.

        Raises:
            MissingDependencyError: A package, a program or a daemon is missing.
            UsageError: A setting is missing or wrong.
        """
        await asyncio.to_thread(require_sandbox, self.config.episode())

    @override
    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        """Play one episode and record its verdict on the trace.

        Raises:
            RolloutError: The infrastructure failed, or the task or a setting is wrong; there is no reward.
        """
        if not isinstance(data, HarborTaskData):
            raise TaskError(f"the harness plays tasks of its own taskset, not {type(data).__name__}")
        config = self.config.episode(Path(data.task_dir))
        known = self.shared.has_answered(ctx.model)
        address = Endpoint(endpoint, secret, ctx.model, trace, data.system_prompt, known)
        try:
            self.shared.require_not_refused(ctx.model)
            pool: WarmPool | None = None
            if isinstance(config, TerminalEnvConfig) and self.config.pool_size is not None:
                pool = self.shared.pool(config, self.config.pool_size)
            ends = self.config.ends_without_tool_call
            outcome = await play(config, address, pool=pool, ends_without_tool_call=ends)
        except HarborGymError as exc:
            await _wait_for_provider(exc)
            raise as_rollout_error(exc) from exc
        outcome.record(trace)
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _wait_for_provider(error: HarborGymError) -> None:
    """Wait as long as a throttling provider asks, since verifiers' own retry follows within seconds."""
    if isinstance(error, SandboxThrottledError):
        await asyncio.sleep(pause_sec(error, 0))
