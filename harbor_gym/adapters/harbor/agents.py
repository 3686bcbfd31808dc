"""Point a trial's agent at a session of the gateway."""

import difflib
import functools
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from harbor_gym._runtime.harbor_versions import base_url_of, require_server
from harbor_gym._runtime.imports import use_litellms_own_prices
from harbor_gym.config import AgentEpisodeConfig, describe_problems
from harbor_gym.episode.grading.breakage import is_there
from harbor_gym.errors import UsageError
from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.gateway.agents import AGENTS, agent_config
from harbor_gym.gateway.trials import (
    end_agent_on_limit,
    note_ends_of_agent,
    open_tunnel_for_agent,
    sandbox_url,
)
from harbor_gym.types import ActionFormat

if TYPE_CHECKING:
    from harbor.environments.base import ExecResult
    from harbor.models.trial.config import AgentConfig
    from harbor.trial.trial import Trial

URL_MARK = "{gateway_url}"
"""Placeholder for the session's URL, without ``/v1``, in the options and variables of an agent that is not listed."""

_NO_LIMIT_TOKENS = 1_000_000
_MAX_TEXT = 1000


def harbors_agent(config: AgentEpisodeConfig) -> "AgentConfig":
    """Return Harbor's configuration of an episode's agent, without checking that there is such an agent.

    Raises:
        UsageError: Harbor's configuration has no such field.
    """
    from harbor.models.trial.config import AgentConfig

    given = config.agent
    fields: dict[str, Any] = {"import_path" if ":" in given else "name": given} if isinstance(given, str) else given
    try:
        return AgentConfig.model_validate({**fields, "kwargs": {**fields.get("kwargs", {}), **config.agent_options}})
    except ValidationError as exc:
        raise UsageError(f"agent can't be used: {describe_problems(exc)}") from exc


def require_agent(config: AgentEpisodeConfig) -> "AgentConfig":
    """Return Harbor's configuration of an episode's agent, and check it before anything is started.

    Raises:
        UsageError: There is no such agent, its options lack :data:`URL_MARK`, or Harbor's server needs a newer Harbor.
    """
    agent = harbors_agent(config)
    if _listed_name(agent) is None:
        _agent_class(agent)
    if config.harbor_server is None:
        _require_address(agent)
    else:
        require_server()
    return agent


def runs_in_sandbox(agent: "AgentConfig") -> bool:
    """Return whether an agent runs in the sandbox, as those that Harbor installs there do.

    Raises:
        UsageError: There is no such agent.
    """
    from harbor.agents.installed.base import BaseInstalledAgent

    if (name := _listed_name(agent)) is not None:
        return AGENTS[name].runs_in_sandbox
    return issubclass(_agent_class(agent), BaseInstalledAgent)


def require_terminus_json(agent: "AgentConfig") -> None:
    """Refuse an agent that is known not to read terminus-json-plain.

    Raises:
        UsageError: The agent is listed in :data:`harbor_gym.gateway.agents.AGENTS` with another format.
    """
    name = _listed_name(agent)
    connection = AGENTS.get(name or "")
    if connection is not None and connection.action_format is not ActionFormat.TERMINUS_JSON:
        raise UsageError(
            f"the embedded policy is taught terminus-json-plain, which the agent {name} does not read: "
            "bring a policy with --model-name MODEL_DIRECTORY"
        )


def point_at_session(
    agent: "AgentConfig", session: Session, *, model: str, in_sandbox: bool, limits: SessionLimits
) -> "AgentConfig":
    """Return an agent's configuration with the session's URL.

    Args:
        agent: One of :data:`harbor_gym.gateway.agents.AGENTS`, or any agent with :data:`URL_MARK` in its options.
        session: The session.
        model: The policy's model name in the gateway.
        in_sandbox: Whether the agent runs in the sandbox, so that it reaches the session by a tunnel.
        limits: The session's budgets, for agents that plan with them.

    Raises:
        UsageError: The agent has another base URL, or is not listed and lacks the placeholder.
    """
    _require_address(agent)
    url = sandbox_url(session) if in_sandbox else session.base_url
    placed = _placed({"kwargs": agent.kwargs, "env": agent.env}, url)
    own = {} if (given := base_url_of(agent)) is None else {"base_url": _placed(given, url)}
    if (name := _listed_name(agent)) is not None:
        pointed = agent_config(
            name,
            url,
            model=model,
            max_context_tokens=limits.max_context_tokens or _NO_LIMIT_TOKENS,
            max_answer_tokens=limits.max_answer_tokens or _NO_LIMIT_TOKENS,
            **placed,
        )
        own |= {"model_name": agent.model_name or pointed.model_name, "kwargs": pointed.kwargs, "env": pointed.env}
        return agent.model_copy(update=own)
    return agent.model_copy(update={"model_name": agent.model_name or model, **placed, **own})


def attach(trial: "Trial", gateway: Gateway, session: Session, *, in_sandbox: bool) -> None:
    """Connect a trial that has not run yet to its session."""
    note_ends_of_agent(trial, session)  # before the tunnel's hook, since closing the tunnel ends requests
    if in_sandbox:
        open_tunnel_for_agent(trial, gateway, session)
    end_agent_with_its_sandbox(trial, session)
    end_agent_on_limit(trial, session)


def end_agent_with_its_sandbox(trial: "Trial", session: Session) -> None:
    """Make an agent that its policy leaves no sandbox to work in end as a program that fails, so that it is graded.

    An agent of this process works by commands in the sandbox. If one of them fails and the agent raises upon it, though
    its policy has answered and the sandbox is there, the policy has ended what the agent needs: its terminal, its
    programs, its files. Harbor would not grade after such an exception.

    Args:
        trial: A trial that has not run yet.
        session: The session of its agent.
    """
    from harbor.agents.installed.base import NonZeroAgentExitCodeError

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


def _agent_class(agent: "AgentConfig") -> type:
    from harbor.agents.factory import AgentFactory
    from harbor.models.agent.name import AgentName

    name = agent.import_path or agent.name or ""
    known = AgentName.values()
    if agent.import_path is None and name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"those that ran here are {', '.join(sorted(AGENTS))}"
        raise UsageError(f"no agent is called {name!r}; {hint} (a class of your own: module.path:Class)")
    use_litellms_own_prices()
    try:
        return AgentFactory.get_agent_class_from_config(agent)
    except (ImportError, TypeError, ValueError) as exc:
        raise UsageError(f"agent {name!r} can't be used: {exc}") from exc


def _listed_name(agent: "AgentConfig") -> str | None:
    return agent.name if agent.import_path is None and agent.name in AGENTS else None


def _require_address(agent: "AgentConfig") -> None:
    own = base_url_of(agent)
    if own is not None and URL_MARK not in own:
        raise UsageError(
            f"agent {agent.import_path or agent.name!r} asks the model at {own}, and not the policy: "
            f"leave its base_url out, or write {URL_MARK} into it"
        )
    if _listed_name(agent) is None and not has_mark(agent):
        raise UsageError(
            f"agent {agent.import_path or agent.name!r} is not listed in harbor_gym.gateway.agents: write {URL_MARK} "
            "into the option or environment variable that takes its base URL"
        )


def has_mark(agent: "AgentConfig") -> bool:
    """Return whether an agent's options, variables or ``base_url`` have :data:`URL_MARK`."""
    given = {"kwargs": agent.kwargs, "env": agent.env, "base_url": base_url_of(agent)}
    return _placed(given, "") != given


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
