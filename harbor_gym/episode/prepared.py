"""An episode up to its first observation: the trial and its sandbox run, the terminal is open, nothing is typed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from harbor_gym import sandboxes
from harbor_gym._runtime.rate_limit import back_off_starts, pass_start_gate
from harbor_gym.episode.grading.rewards import reward_function
from harbor_gym.errors import HarborGymError, SandboxThrottledError, UsageError
from harbor_gym.outcomes import pause_sec
from harbor_gym.sandboxes.setup_command import require_success
from harbor_gym.terminal import (
    Session,
    Terminal,
    TerminalTurn,
    TmuxTerminal,
    open_terminal,
    resume_terminal,
    session_of,
)
from harbor_gym.terminal.sandbox_exec import run_in_sandbox

if TYPE_CHECKING:
    from harbor.models.task.task import Task

    from harbor_gym.config import TerminalEnvConfig
    from harbor_gym.episode import AgentPhase, Episode
    from harbor_gym.episode.episode import DumpedPhase
    from harbor_gym.episode.mcp import McpServers, ToolResult
    from harbor_gym.formats.tool_text import ToolCall, ToolDefinition


@dataclass(frozen=True)
class DumpedEpisode:
    """A running episode at one moment, from which copies begin. The holder must close it."""

    phase: DumpedPhase
    session: Session
    first_turn: TerminalTurn
    metrics: dict[str, float]
    """Of the dump."""

    def close(self) -> None:
        """Free the memory. Copies that are prepared go on."""
        self.phase.close()


class PreparedEpisode:
    """One episode that waits for its policy. Single-use; its owner closes it.

    Args:
        config: The task and the sandbox; budgets and recordings play no part here.
        copied: Begin as a copy of this episode of the same configuration.
    """

    def __init__(self, config: TerminalEnvConfig, copied: DumpedEpisode | None = None) -> None:
        self._config = config
        self._copied = copied
        self._task: Task | None = None
        self._episode: Episode | None = None
        self._phase: AgentPhase | None = None
        self._servers: McpServers | None = None
        self._terminal: Terminal | None = None
        self._first_turn = copied.first_turn if copied is not None else None
        self._is_closed = False
        self.terminal_open_sec = 0.0
        """Seconds that opening the terminal took."""

    async def prepare(self) -> None:
        """Start the trial and open the terminal. After a failure the holder still closes.

        Raises:
            TaskError: The task directory is wrong, or the task can't run on this sandbox.
            MissingDependencyError: The sandbox type needs something that isn't there.
            SandboxError: The sandbox could not be built or started.
            TerminalStartError: The sandbox has no usable shell or tmux.
            UsageError: It was closed meanwhile.
        """
        from harbor_gym.episode import Episode
        from harbor_gym.episode.task import load_task

        config = self._config
        self._task = await load_task(config.task_dir, config)
        if not sandboxes.has_passed(config.sandbox):
            await asyncio.to_thread(sandboxes.preflight, sandboxes.environment_config(config.sandbox))
        if self._is_closed:
            raise UsageError("the episode was closed while it was being started")
        is_taken = config.setup_command is not None and sandboxes.takes_setup(config.sandbox)
        setup = {"setup_command": config.setup_command} if is_taken else {}
        self._episode = Episode(
            self._task,
            sandboxes.environment_config(config.sandbox, options={**config.sandbox_options, **setup}),
            trials_dir=config.trials_dir,
            stop_timeout_sec=config.stop_timeout_sec,
            verifier=config.verifier,
            verify_paths=config.verify_paths,
            ambiguous_failures=config.ambiguous_failures,
            choose=reward_function(config.reward_key, config.reward_function),
            copied=self._copied.phase if self._copied is not None else None,
        )
        self._phase = await _start(self._episode)
        if self._copied is not None:
            started, copied, self._copied = time.monotonic(), self._copied, None
            await self._episode.restore()
            self._terminal = resume_terminal(self._phase.environment, config.session, copied.session)
            self.terminal_open_sec = time.monotonic() - started
            await self._require_open()
            return
        if config.setup_command is not None and not is_taken:
            await _set_up(self._phase, config.setup_command, self._task.config.environment.build_timeout_sec)
        self._phase = await self._with_tools(self._phase, is_first=True)
        started = time.monotonic()
        self._terminal = await _open_terminal(self._phase, config)
        self.terminal_open_sec = time.monotonic() - started
        await self._require_open()

    async def _require_open(self) -> None:
        if self._is_closed:
            await self.close()
            raise UsageError("the episode was closed while its terminal was being opened")

    async def dump(self) -> DumpedEpisode:
        """Dump the episode, which goes on undisturbed.

        Raises:
            UsageError: It can't be copied: its sandbox can't, or its tools' servers run beside the terminal.
            SandboxError: Its processes can't be dumped.
        """
        if self._servers is not None:
            raise UsageError('mode="exact" copies no MCP servers, and the task has some: use mode="replay"')
        terminal, first_turn = cast("TmuxTerminal", self.terminal), await self.first_screen()
        started = time.monotonic()
        # A sandbox without processes, which is refused, has another class of terminal.
        phase = await self.episode.dump(lambda: terminal.stand_still())
        metrics = {"time/dump_sec": time.monotonic() - started, "fork/dump_bytes": float(phase.dump.size_bytes)}
        return DumpedEpisode(phase, session_of(terminal), first_turn, metrics)

    @property
    def task(self) -> Task:
        """The task, once prepared."""
        assert self._task is not None
        return self._task

    @property
    def episode(self) -> Episode:
        """The trial, once prepared."""
        assert self._episode is not None
        return self._episode

    @property
    def phase(self) -> AgentPhase:
        """The trial's current agent phase, once prepared."""
        assert self._phase is not None
        return self._phase

    @property
    def terminal(self) -> Terminal:
        """The open terminal, once prepared."""
        assert self._terminal is not None
        return self._terminal

    @property
    def is_closed(self) -> bool:
        """Whether this or its holder closed the episode."""
        return self._is_closed or (self._episode is not None and self._episode.is_closed)

    async def first_screen(self) -> TerminalTurn:
        """Return the terminal's first screen, read once. Reading it proves that sandbox and terminal answer.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        if self._first_turn is None:
            self._first_turn = await self.terminal.run([])
        return self._first_turn

    async def enter_phase(self, phase: AgentPhase) -> TerminalTurn:
        """Open a terminal in a later phase of the trial, and return its screen.

        Raises:
            TerminalStartError: The sandbox has no usable shell or tmux.
            SandboxError: The sandbox is gone or does not answer.
        """
        self._phase = phase = await self._with_tools(phase, is_first=False)
        self._terminal = await _open_terminal(phase, self._config)
        return await self._terminal.run([])

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The tools of the phase beside the terminal's."""
        return self._servers.tools if self._servers is not None else ()

    async def call(self, call: ToolCall) -> ToolResult:
        """Call one of :attr:`tools`; see :meth:`harbor_gym.episode.mcp.McpServers.call`."""
        from harbor_gym.episode.episode import run_in_phase

        assert self._servers is not None
        return await run_in_phase(self.phase, self._servers.call(call, timeout_sec=self._config.terminal.max_wait_sec))

    async def leave_phase(self) -> None:
        """Release the phase's terminal, and end the servers of its tools."""
        await self.terminal.detach()
        await self._close_servers()

    async def _close_servers(self) -> None:
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.close()

    async def _with_tools(self, phase: AgentPhase, *, is_first: bool) -> AgentPhase:
        """Return the phase, with the tools of the task's MCP servers if the policy's format has tools."""
        declared = phase.resources
        if not (declared.mcp_servers and self._config.calls_mcp_tools):
            return phase
        from harbor_gym.episode.episode import run_in_phase
        from harbor_gym.episode.mcp import McpServers

        servers = self._servers = McpServers(phase.environment, phase.user, declared.mcp_servers)
        await run_in_phase(phase, servers.open(is_first=is_first))
        resources = replace(declared, tools=servers.tools, problems=servers.problems)
        instruction = phase.instruction.removesuffix(declared.text()) + resources.text()
        return replace(phase, instruction=instruction, resources=resources)

    async def close(self, *, has_channel: bool = True) -> None:
        """Stop terminal and sandbox. Idempotent, at any time; a kept trial's folder stays.

        Args:
            has_channel: Whether the terminal's channel still exists. It ends with its event loop.

        Raises:
            SandboxTimeoutError: The sandbox did not stop in the time that the configuration allows.
        """
        self._is_closed = True
        try:
            # Channels are processes of this machine; those in the sandbox end with it.
            if self._terminal is not None and has_channel:
                with contextlib.suppress(HarborGymError):
                    await self._terminal.detach()
            if has_channel:
                await self._close_servers()
            elif self._servers is not None:
                self._servers.forget()
        finally:
            if self._episode is not None:
                await self._episode.close()

    async def discard(self) -> None:
        """Close an unused episode, and remove its trial folder even if such folders are kept.

        Raises:
            SandboxTimeoutError: As for :meth:`close`.
        """
        try:
            await self.close()
        finally:
            if self._episode is not None and (folder := self._episode.trial_dir) is not None:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _set_up(phase: AgentPhase, command: str, timeout_sec: float) -> None:
    """Run a set-up command in a sandbox that can't start from its files."""
    from harbor_gym.episode.episode import run_in_phase

    work = run_in_sandbox(
        phase.environment, command, timeout_sec=timeout_sec, user="root", purpose="run the setup_command"
    )
    done = await run_in_phase(phase, work)
    require_success(done.return_code, f"{done.stdout or ''}{done.stderr or ''}")


async def _open_terminal(phase: AgentPhase, config: TerminalEnvConfig) -> Terminal:
    """Open a terminal in the phase's sandbox, as the phase's user.

    Raises:
        TerminalStartError: The sandbox has no usable shell or tmux.
        SandboxError: The sandbox is gone or does not answer.
    """
    from harbor_gym.episode.episode import run_in_phase

    return await run_in_phase(phase, open_terminal(phase.environment, config.session, user=phase.user))


async def _start(episode: Episode) -> AgentPhase:
    """Start an episode once the process's start gate allows it."""
    await pass_start_gate()
    try:
        return await episode.start()
    except SandboxThrottledError as exc:
        back_off_starts(pause_sec(exc, 0))
        raise
