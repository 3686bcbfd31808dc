"""The gateway's address, and its limits on requests."""

from pydantic import BaseModel, ConfigDict, Field


class GatewayConfig(BaseModel):
    """The gateway's address, and its limits on requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback lets other machines try keys."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    public_url: str | None = None
    """The gateway's URL for sandboxes on other machines, without a trailing slash; None is its own address."""

    max_body_bytes: int = Field(default=4 * 1024 * 1024, gt=0)
    """Largest request body, in bytes; a larger one is refused with status 413. Parsing a body blocks the event loop."""

    body_timeout_sec: float = Field(default=30.0, gt=0)
    """Longest wait for a request's whole body, in seconds; status 408 after that."""

    write_timeout_sec: float = Field(default=30.0, gt=0)
    """Longest wait for a client to take its whole answer, in seconds; the connection is closed after that."""

    idle_timeout_sec: float = Field(default=75.0, gt=0)
    """Longest wait for a connection's first or next request, in seconds, its headers included. Of the connections that
    wait, 256 without a session and 64 of each session are kept; one more closes the oldest."""

    max_group_sessions: int = Field(default=4096, gt=0)
    """Most sessions that one :class:`SessionGroup` opens by itself."""
