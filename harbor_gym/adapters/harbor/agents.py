"""How a trial's agent is pointed at a session."""

from typing import TYPE_CHECKING, Any, cast

from harbor_gym.errors import UsageError
from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.gateway.agents import AGENTS, agent_config
from harbor_gym.gateway.trials import end_agent_on_limit, open_tunnel_for_agent, sandbox_url

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig
    from harbor.trial.trial import Trial

URL_MARK = "{gateway_url}"
"""Stands in the options and environment variables of an agent that is not listed for its session's address, without
``/v1``."""

_NO_LIMIT_TOKENS = 1_000_000


def runs_in_sandbox(agent: "AgentConfig") -> bool:
    """Return whether a listed agent runs in the sandbox; False for others."""
    name = _listed_name(agent)
    return name is not None and AGENTS[name].runs_in_sandbox


def point_at_session(
    agent: "AgentConfig", session: Session, *, model: str, in_sandbox: bool, limits: SessionLimits
) -> "AgentConfig":
    """Return an agent's configuration with the session's address in it.

    Args:
        agent: One of :data:`harbor_gym.gateway.agents.AGENTS`, or any with :data:`URL_MARK` where its address belongs.
        session: The session.
        model: The policy's model name in the gateway.
        in_sandbox: Whether the agent runs in the sandbox, so that it reaches the session by a tunnel.
        limits: The session's budgets, for agents that plan with them.

    Raises:
        UsageError: The agent is not listed and has no place for an address.
    """
    url = sandbox_url(session) if in_sandbox else session.base_url
    if (name := _listed_name(agent)) is not None:
        pointed = agent_config(
            name,
            url,
            model=model,
            max_context_tokens=limits.max_context_tokens or _NO_LIMIT_TOKENS,
            max_answer_tokens=limits.max_answer_tokens or _NO_LIMIT_TOKENS,
            kwargs=agent.kwargs,
            env=agent.env,
        )
        own = {"model_name": agent.model_name or pointed.model_name, "kwargs": pointed.kwargs, "env": pointed.env}
        return agent.model_copy(update=own)
    given = {"kwargs": agent.kwargs, "env": agent.env}
    placed = _placed(given, url)
    if placed == given:
        raise UsageError(
            f"agent {agent.name or agent.import_path!r} is not listed in harbor_gym.gateway.agents: write {URL_MARK} "
            "into the option or environment variable that takes its base URL"
        )
    return agent.model_copy(update={"model_name": agent.model_name or model, **placed})


def attach(trial: "Trial", gateway: Gateway, session: Session, *, in_sandbox: bool) -> None:
    """Connect a trial that has not run yet to its session."""
    if in_sandbox:
        open_tunnel_for_agent(trial, gateway, session)
    end_agent_on_limit(trial, session)


def _listed_name(agent: "AgentConfig") -> str | None:
    return agent.name if agent.import_path is None and agent.name in AGENTS else None


def _placed(value: Any, url: str) -> Any:
    match value:
        case str():
            return value.replace(URL_MARK, url)
        case dict():
            return {key: _placed(item, url) for key, item in cast("dict[Any, Any]", value).items()}
        case list():
            return [_placed(item, url) for item in cast("list[Any]", value)]
        case _:
            return value
