"""Connect a Harbor trial's agent to a session: open a tunnel into its sandbox, and end it when a budget is spent."""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from harbor.trial.hooks import TrialEvent

from harbor_gym.gateway.server import Gateway
from harbor_gym.gateway.session import Session
from harbor_gym.gateway.tunnel import tunnel

if TYPE_CHECKING:
    from harbor.trial.trial import Trial

TUNNEL_PORT = 8137
"""Default port of the tunnel inside a sandbox; fixed, since an agent's configuration needs it before the start."""


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


def note_ends_of_agent(trial: "Trial", session: Session) -> None:
    """Make the session record, at the end of each step of the trial, whether its agent lost the connection.

    Args:
        trial: A trial that has not run yet.
        session: The session of its agent.
    """

    async def end_phase(_: Any) -> None:
        session.end_phase()

    trial.add_hook(TrialEvent.AGENT_END, end_phase)
