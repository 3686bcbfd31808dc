"""Connect a Harbor trial's agent to a session: open a tunnel into its sandbox, and end it when a budget is spent."""

import asyncio
import functools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.trial.hooks import TrialEvent

from harbor_gym.episode.grading.breakage import is_there
from harbor_gym.gateway.server import Gateway
from harbor_gym.gateway.session import Session
from harbor_gym.gateway.tunnel import tunnel

if TYPE_CHECKING:
    from harbor.environments.base import ExecResult
    from harbor.trial.trial import Trial

TUNNEL_PORT = 8137
"""Default port of the tunnel inside a sandbox; fixed, since an agent's configuration needs it before the start."""


_MAX_TEXT = 1000


def sandbox_url(session: Session, port: int = TUNNEL_PORT) -> str:
    """Return the session's URL inside a sandbox with the tunnel of :func:`open_tunnel_for_agent`."""
    return f"http://127.0.0.1:{port}/s/{session.key}"


def open_tunnel_for_agent(trial: "Trial", gateway: Gateway, session: Session, *, port: int = TUNNEL_PORT) -> None:
    """Make the trial open a tunnel to the session before its agent runs, and close it before its verifier runs.

    Args:
        trial: A trial that has not run yet; its agent runs in the sandbox.
        gateway: The open gateway of the session.
        session: The session to reach.
        port: Port inside the sandbox.
    """
    stack = AsyncExitStack()

    async def open_tunnel(_: Any) -> None:
        await stack.enter_async_context(tunnel(trial.agent_environment, gateway, session, port=port))

    async def close_tunnel(_: Any) -> None:
        await stack.aclose()

    trial.add_hook(TrialEvent.AGENT_START, open_tunnel)
    for event in (TrialEvent.AGENT_END, TrialEvent.CANCEL, TrialEvent.END):
        trial.add_hook(event, close_tunnel)


def end_agent_on_limit(trial: "Trial", session: Session) -> None:
    """End the trial's agent when a budget of the session runs out, as if by its own timeout, so that it is verified.

    An agent that fails at the gateway's refusal might end the trial without a verdict.

    Args:
        trial: A trial that has not run yet.
        session: The session of its agent.
    """
    run = trial.agent.run

    async def run_until_limit(*args: Any, **kwargs: Any) -> None:
        running = asyncio.ensure_future(run(*args, **kwargs))
        ending = asyncio.ensure_future(session.wait_for_limit())
        try:
            await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                # Harbor takes a TimeoutError of the agent for its time limit, and verifies the sandbox as it is.
                raise TimeoutError(f"the session's budget ran out: {session.end_reason}")
            await running
        finally:
            for task in (running, ending):
                task.cancel()
            await asyncio.gather(running, ending, return_exceptions=True)

    trial.agent.run = run_until_limit


def end_agent_with_its_sandbox(trial: "Trial", session: Session) -> None:
    """Make an agent that its policy leaves no sandbox to work in end as a program that fails, so that it is graded.

    An agent of this process works by commands in the sandbox. If one of them fails and the agent raises upon it, though
    its policy has answered and the sandbox is there, the policy has ended what the agent needs: its terminal, its
    programs, its files. Harbor would not grade after such an exception.

    Args:
        trial: A trial that has not run yet.
        session: The session of its agent.
    """
    environment, run = trial.agent_environment, trial.agent.run

    async def run_in_sandbox(*args: Any, **kwargs: Any) -> None:
        execute, has_failed = environment.exec, False

        @functools.wraps(execute)
        async def noted(*args: Any, **kwargs: Any) -> "ExecResult":
            nonlocal has_failed
            has_failed = False
            result = await execute(*args, **kwargs)
            has_failed = result.return_code != 0
            return result

        environment.exec = noted
        try:
            await run(*args, **kwargs)
        except (TimeoutError, NonZeroAgentExitCodeError):
            raise
        except Exception as exc:  # the boundary to foreign code
            if has_failed and session.calls and await is_there(environment):
                raise NonZeroAgentExitCodeError(f"its sandbox fails its commands: {str(exc)[-_MAX_TEXT:]}") from exc
            raise
        finally:
            environment.exec = execute

    trial.agent.run = run_in_sandbox


def note_ends_of_agent(trial: "Trial", session: Session) -> None:
    """Make the session record, at the end of each step of the trial, whether its agent lost the connection.

    Args:
        trial: A trial that has not run yet.
        session: The session of its agent.
    """

    async def end_phase(_: Any) -> None:
        session.end_phase()

    trial.add_hook(TrialEvent.AGENT_END, end_phase)
