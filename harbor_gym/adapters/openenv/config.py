"""The configuration of a server of Harbor tasks: one frozen object, from which its command line is made."""

import os
import secrets
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from harbor_gym.config import DEFAULT_MAX_RETRIES, MaxRetries, OptionalPath, TerminalEnvConfig, require_one_conversation
from harbor_gym.errors import UsageError

TOKEN_VARIABLE = "HARBOR_GYM_OPENENV_TOKEN"
"""The environment variable that holds a server's token, for the server and for its clients."""

DEFAULT_CALL_TIMEOUT_SEC = 3600.0
"""Long enough for an image build at the first reset, and for a verifier."""

MIN_TOKEN_CHARACTERS = 16
"""A shorter token could be guessed."""

_GUESSED = f"is shorter than {MIN_TOKEN_CHARACTERS} characters: it could be guessed"

TASKS, SERVER, LIMITS = "What to serve", "Where to listen", "Limits"
"""Groups of fields, in the order in which ``--help`` lists them."""


def _field(group: str, default: Any = None, **constraints: Any) -> Any:
    return Field(default=default, json_schema_extra={"group": group}, **constraints)


class ServerConfig(BaseModel):
    """A server of Harbor tasks behind OpenEnv.

    Each field is a flag of ``harbor-gym openenv``, and so is each field of ``env``.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    env: TerminalEnvConfig
    """The sandbox and the budgets of each episode. Each task replaces ``env.task_dir``."""

    tasks: tuple[str, ...] = _field(TASKS, (), min_length=1)
    """Task directory, directory of tasks, git+URL@COMMIT#path, or org/name@ref."""

    where: tuple[str, ...] = _field(TASKS, ())
    """Only tasks with difficulty=easy, keywords!=vim …"""

    test_tasks: tuple[str, ...] = _field(TASKS, ())
    """Name of a task in the split test."""

    test_fraction: float = _field(TASKS, 0.0, ge=0, lt=1)
    """Share of the tasks in the split test, drawn by the seed."""

    seed: int = _field(TASKS, 0)
    """Draws the split test."""

    host: str = _field(SERVER, "127.0.0.1")
    """Address to listen on. Anything but loopback lets other machines try tokens."""

    port: int = _field(SERVER, 8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    token: SecretStr | None = _field(SERVER)
    """The token of clients. None: the environment variable HARBOR_GYM_OPENENV_TOKEN, else a generated one."""

    ssl_certfile: OptionalPath = _field(SERVER)
    """Certificate for https and wss."""

    ssl_keyfile: OptionalPath = _field(SERVER)
    """The certificate's key, if the certificate's file does not contain it."""

    max_sessions: int = _field(LIMITS, 8, ge=1)
    """Sessions, and so sandboxes, at the same time."""

    max_request_bytes: int = _field(LIMITS, 1_000_000, ge=1000)
    """Longest message of a client, in bytes."""

    request_timeout_sec: float = _field(LIMITS, 10.0, gt=0)
    """Longest wait for a whole request, in seconds; the connection is closed after that."""

    idle_timeout_sec: float = _field(LIMITS, 900.0, gt=0)
    """Seconds without a message after which a session is closed; a session is not idle during a reset or a step."""

    call_timeout_sec: float = _field(LIMITS, DEFAULT_CALL_TIMEOUT_SEC, gt=0)
    """Longest reset (including an image build) or step (including the verifier), in seconds; after it the sandbox is
    stopped and the episode is lost."""

    max_retries: MaxRetries = _field(LIMITS, DEFAULT_MAX_RETRIES)
    """Retries of a sandbox's start after failures of the infrastructure; the trainer may retry a started episode."""

    pool_size: int | None = _field(LIMITS, ge=1)
    """Sandboxes kept ready for each task."""

    @field_validator("env")
    @classmethod
    def _is_one_conversation(cls, env: TerminalEnvConfig) -> TerminalEnvConfig:
        try:
            require_one_conversation(env, "a server, which sees no tokens,")
        except UsageError as exc:
            raise ValueError(str(exc)) from exc
        return env

    @field_validator("token")
    @classmethod
    def _is_no_guess(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < MIN_TOKEN_CHARACTERS:
            raise ValueError(_GUESSED)
        return token

    @model_validator(mode="after")
    def _has_a_certificate_with_its_key(self) -> Self:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile is given without ssl_certfile: there is no TLS without a certificate")
        return self


def find_token(config: ServerConfig) -> tuple[str, bool]:
    """Return the server's token, and whether it was generated just now.

    Raises:
        UsageError: The environment variable's token is too short.
    """
    if config.token is not None:
        return config.token.get_secret_value(), False
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not given:
        return secrets.token_urlsafe(32), True
    if len(given) < MIN_TOKEN_CHARACTERS:
        raise UsageError(f"{TOKEN_VARIABLE} {_GUESSED}")
    return given, False
