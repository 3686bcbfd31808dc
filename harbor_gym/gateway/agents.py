"""Point Harbor's agents at a session, one typed entry an agent.

The entries record each agent's wire, model prefix and pitfalls. An agent that is not listed needs only the base URL and
a model name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from harbor_gym._runtime.imports import use_litellms_own_prices
from harbor_gym.errors import UsageError
from harbor_gym.types import ActionFormat

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig

UNUSED_KEY = "session-key-is-in-the-url"
"""A placeholder for agents that require an API key: the URL holds the real key."""


@dataclass(frozen=True, slots=True)
class AgentConnection:
    """One agent's connection to a session: its wire, address, variables and model name."""

    wire: Literal["chat_completions", "responses", "messages"]
    """The wire format of its requests."""

    runs_in_sandbox: bool
    """Whether it runs in the sandbox, so that it needs a tunnel and its program in the image."""

    provider: str
    """Prefix of the model's name, as Harbor and litellm write it."""

    url_suffix: Literal["", "/v1"] = "/v1"
    """Suffix of its base URL after the session's address."""

    url_env: tuple[str, ...] = ()
    """Environment variables that take the base URL."""

    key_env: tuple[str, ...] = ()
    """Environment variables that must hold some API key."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further environment variables."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the agent in Harbor."""

    program: str = ""
    """Program that the image must hold, for an agent that runs in the sandbox: none of Harbor's installers works
    without the open internet."""

    action_format: ActionFormat | None = None
    """How its model writes an action, for an agent that reads one of our formats; None for one with tools."""


AGENTS: Mapping[str, AgentConnection] = {
    "terminus-2": AgentConnection(
        wire="chat_completions",
        runs_in_sandbox=False,
        provider="openai",
        # A summary opens a new conversation and a recording is another program in the sandbox.
        kwargs={"enable_summarize": False, "record_terminal_session": False},
        action_format=ActionFormat.TERMINUS_JSON,
    ),
    "mini-swe-agent": AgentConnection(
        wire="chat_completions",
        runs_in_sandbox=True,
        provider="openai",
        url_env=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        key_env=("OPENAI_API_KEY", "MSWEA_API_KEY"),
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it looks for prices on the internet, for minutes
        program="mini-swe-agent",
    ),
    "claude-code": AgentConnection(
        wire="messages",
        runs_in_sandbox=True,
        provider="anthropic",
        url_suffix="",
        url_env=("ANTHROPIC_BASE_URL",),
        key_env=("ANTHROPIC_API_KEY",),
        program="claude",
    ),
    "codex": AgentConnection(
        wire="responses",
        runs_in_sandbox=True,
        provider="openai",
        url_env=("OPENAI_BASE_URL",),
        key_env=("OPENAI_API_KEY",),
        program="codex",
    ),
    "qwen-coder": AgentConnection(  # Harbor's name of qwen-code
        wire="chat_completions",
        runs_in_sandbox=True,
        provider="openai",
        url_env=("OPENAI_BASE_URL",),
        key_env=("OPENAI_API_KEY",),
        program="qwen",
    ),
    "pi": AgentConnection(
        wire="chat_completions",
        runs_in_sandbox=True,
        provider="openai",
        url_env=("OPENAI_BASE_URL",),
        key_env=("OPENAI_API_KEY",),
        kwargs={"model_api": "openai-completions"},
        program="pi",
    ),
}
"""Harbor's agents that were run against the gateway, by their names in Harbor."""


def relayed_agent_config(
    agent: "AgentConfig", model: str, *, max_context_tokens: int, max_answer_tokens: int
) -> "AgentConfig":
    """Return an agent's configuration for Harbor's server, which gives each rollout its address and its key.

    Args:
        agent: Any agent. One of :data:`AGENTS` gets its entry's options and variables; those set here take precedence.
        model: The policy's model name in the gateway, without a provider.
        max_context_tokens: The model's context window, in tokens, for agents that plan with it.
        max_answer_tokens: Longest answer, in tokens, for agents that plan with it.
    """
    connection = AGENTS.get(agent.name or "") if agent.import_path is None else None
    if connection is None:
        return agent.model_copy(update={"model_name": agent.model_name or f"openai/{model}"})
    options = dict(connection.kwargs)
    if agent.name == "terminus-2":
        options["model_info"] = _model_info(max_context_tokens, max_answer_tokens)
    return agent.model_copy(
        update={
            "model_name": agent.model_name or f"{connection.provider}/{model}",
            "kwargs": {**options, **agent.kwargs},
            "env": {**connection.env, **agent.env},
        }
    )


def agent_config(
    name: str,
    base_url: str,
    *,
    model: str = "policy",
    max_context_tokens: int = 1_000_000,
    max_answer_tokens: int = 100_000,
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> "AgentConfig":
    """Return Harbor's configuration of an agent that calls a session.

    Harbor writes it into the trial's folder, the URL with the session's key included: close the session after the
    trial. litellm, which some agents import in this process, is kept from requesting prices from the internet.

    Args:
        name: One of :data:`AGENTS`.
        base_url: The session's address, as the agent reaches it: ``session.base_url`` for an agent on this machine,
            :func:`harbor_gym.gateway.trials.sandbox_url` for one in a sandbox.
        model: The policy's model name in the gateway, without a provider.
        max_context_tokens: The model's context window, in tokens, for agents that plan with it.
        max_answer_tokens: Longest answer, in tokens, for agents that plan with it.
        kwargs: Further options of the agent; they take precedence.
        env: Further environment variables of the agent; they take precedence.

    Raises:
        UsageError: No such agent is listed.
    """
    from harbor.models.trial.config import AgentConfig

    connection = AGENTS.get(name)
    if connection is None:
        raise UsageError(f"no agent {name!r} is listed; there are {', '.join(sorted(AGENTS))}")
    use_litellms_own_prices()
    url = f"{base_url}{connection.url_suffix}"
    options = dict(connection.kwargs)
    if name == "terminus-2":
        options |= _terminus_options(url, max_context_tokens, max_answer_tokens)
    variables = dict.fromkeys(connection.url_env, url) | dict.fromkeys(connection.key_env, UNUSED_KEY)
    return AgentConfig(
        name=name,
        model_name=f"{connection.provider}/{model}",
        kwargs={**options, **(kwargs or {})},
        env={**variables, **connection.env, **(env or {})},
    )


def _terminus_options(url: str, max_context_tokens: int, max_answer_tokens: int) -> dict[str, Any]:
    info = _model_info(max_context_tokens, max_answer_tokens)
    return {"api_base": url, "llm_kwargs": {"api_key": UNUSED_KEY}, "model_info": info}


def _model_info(max_context_tokens: int, max_answer_tokens: int) -> dict[str, float]:
    # Without costs, litellm fails on a model that its price list does not have.
    return {
        "max_input_tokens": max_context_tokens,
        "max_output_tokens": max_answer_tokens,
        "input_cost_per_token": 0.0,
        "cache_creation_input_token_cost": 0.0,
        "cache_read_input_token_cost": 0.0,
        "output_cost_per_token": 0.0,
    }
