"""The harness: plays episodes in this package's own loop, or with a Harbor agent, through verifiers' endpoint."""

import asyncio
import weakref
from pathlib import Path
from typing import Any, Self, override

import verifiers.v1 as vf
from harbor.models.trial.config import AgentConfig
from pydantic import Field, ValidationError, model_validator
from verifiers.v1.clients import ModelContext
from verifiers.v1.errors import TaskError
from verifiers.v1.runtimes import ProgramResult, Runtime

from harbor_gym._runtime.harbor_versions import require_server
from harbor_gym.adapters.verifiers.outcome import as_rollout_error
from harbor_gym.adapters.verifiers.players import Endpoint, play_agent, play_terminal
from harbor_gym.adapters.verifiers.taskset import HarborTaskData
from harbor_gym.config import FIELDS_WITH_AGENT, TerminalEnvConfig, describe_problems, require_fields_of_own_loop
from harbor_gym.errors import HarborGymError, SandboxThrottledError
from harbor_gym.outcomes import pause_sec
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.samplers.statuses import EngineSettingsError, settings_error
from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.registry import preflight
from harbor_gym.types import DEFAULT_SANDBOX, ActionFormat

_OWN_FIELDS = {"task_dir", "sandbox", "sandbox_options", "step_rewards"}
"""Fields of ``TerminalEnvConfig`` that ``terminal_env`` can't set."""


class HarborHarnessConfig(vf.HarnessConfig):
    """The sandbox, and the policy's loop or agent in it."""

    sandbox: str = DEFAULT_SANDBOX
    """``local``, a Harbor environment type by name (``docker``, ``modal``, …), or ``module.path:Class``."""

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the sandbox class."""

    terminal_env: dict[str, Any] = Field(default_factory=dict)
    """Other fields of :class:`harbor_gym.TerminalEnvConfig`: ``action_format``, ``max_turns``, ``time_limit_sec``,
    ``reward_key``, ``setup_command``, …, except ``step_rewards``, since verifiers takes one reward per episode."""

    pool_size: int | None = Field(default=None, ge=1)
    """Sandboxes that a warm pool keeps ready for each task in each process; None starts one per episode."""

    ends_without_tool_call: bool = False
    """Whether, with ``action_format = "bash-tool"``, an answer without a tool call ends the policy's work."""

    agent: dict[str, Any] | None = None
    """A Harbor agent that plays instead of the own loop: Harbor's ``AgentConfig``, such as ``{ name = "terminus-2" }``.
    An agent that :data:`harbor_gym.gateway.agents.AGENTS` does not list needs ``{gateway_url}`` in place of its base
    URL. ``terminal_env`` then takes only :data:`harbor_gym.config.FIELDS_WITH_AGENT`, and there is no pool."""

    agent_in_sandbox: bool | None = None
    """Whether the agent runs in the sandbox; None derives it from the agent."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if unfit := _OWN_FIELDS & set(self.terminal_env):
            raise ValueError(f"terminal_env can't set {', '.join(sorted(unfit))}: the task or the harness does")
        if self.terminal_env.get("action_format") == ActionFormat.KEYSTROKES:
            raise ValueError(
                "terminal_env can't set action_format = 'keystrokes': verifiers' renderers strip white space around a "
                "message, and Enter with it. Use terminus-json-plain or bash-tool"
            )
        if self.agent is not None and (unfit := set(self.terminal_env) - FIELDS_WITH_AGENT):
            raise ValueError(f"with an agent of Harbor's terminal_env can't set {', '.join(sorted(unfit))}")
        if self.agent is not None and self.pool_size is not None:
            raise ValueError("an agent of Harbor's starts its own sandbox: leave pool_size out")
        environment_config(self.sandbox, options=self.sandbox_options)
        try:
            config = self.env_config(Path())
            self.harbor_agent()
        except ValidationError as exc:
            raise ValueError(describe_problems(exc)) from exc
        if self.agent is None:
            require_fields_of_own_loop(config)
        return self

    def env_config(self, task_dir: Path) -> TerminalEnvConfig:
        """Return the configuration of a task's episodes."""
        return TerminalEnvConfig(
            task_dir=task_dir,
            sandbox=self.sandbox,
            sandbox_options=self.sandbox_options,
            **self.terminal_env,
        )

    def preflight(self) -> None:
        """Check that a sandbox can start here, or that the installed Harbor can use a server.

        Raises:
            MissingDependencyError: A package, a program or a daemon is missing.
            UsageError: A setting is missing or wrong.
        """
        if self.env_config(Path()).harbor_server is not None:
            require_server()
        else:
            preflight(environment_config(self.sandbox, options=self.sandbox_options))

    def harbor_agent(self) -> AgentConfig | None:
        """Return the agent; None is the own loop."""
        return None if self.agent is None else AgentConfig.model_validate(self.agent)


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
        """See :meth:`HarborHarnessConfig.preflight`.

        Raises:
            MissingDependencyError: A package, a program or a daemon is missing.
            UsageError: A setting is missing or wrong.
        """
        await asyncio.to_thread(self.config.preflight)

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
        config = self.config.env_config(Path(data.task_dir))
        known = self.shared.has_answered(ctx.model)
        address = Endpoint(endpoint, secret, ctx.model, trace, data.system_prompt, known)
        agent = self.config.harbor_agent()
        try:
            self.shared.require_not_refused(ctx.model)
            if agent is not None:
                outcome = await play_agent(config, address, agent, in_sandbox=self.config.agent_in_sandbox)
            else:
                pool = None if self.config.pool_size is None else self.shared.pool(config, self.config.pool_size)
                ends = self.config.ends_without_tool_call
                outcome = await play_terminal(config, address, pool=pool, ends_without_tool_call=ends)
        except HarborGymError as exc:
            await _wait_for_provider(exc)
            raise as_rollout_error(exc) from exc
        outcome.record(trace)
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _wait_for_provider(error: HarborGymError) -> None:
    """Wait as long as a throttling provider asks, since verifiers' own retry follows within seconds."""
    if isinstance(error, SandboxThrottledError):
        await asyncio.sleep(pause_sec(error, 0))
