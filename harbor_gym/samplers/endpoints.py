"""Check whether a server answers at all, before a run and during it.

Clients retry for minutes, which is right for a service under load and wrong for a dead one.
"""

import asyncio
import os
import socket
import ssl

import aiohttp

from harbor_gym.errors import HarborGymError, UsageError

ANSWER_SEC = 5.0
"""How long a server may take to answer a check."""

POLL_SEC = 5.0
LOOKS = 3
"""Failed checks in a row after which a server counts as gone."""


class ServiceLostError(HarborGymError):
    """The server that samples and trains no longer answers."""

    is_infrastructure = True


async def find_silence(base_url: str, *, timeout_sec: float = ANSWER_SEC) -> str | None:
    """Return why a server does not answer; None if it answers, with any status.

    Args:
        base_url: The server's address. Proxies from the process's environment variables are used.
        timeout_sec: Longest wait for the answer, in seconds.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_sec)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as client,
            client.get(f"{base_url.rstrip('/')}/api/v1/healthz", allow_redirects=False),
        ):
            return None
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        return "no address, such as http://127.0.0.1:8000/v1 or https://HOST/v1"
    except TimeoutError:
        return f"no answer in {timeout_sec:g} s"
    except aiohttp.ClientConnectorCertificateError as exc:
        why = getattr(exc.certificate_error, "verify_message", "") or exc.certificate_error
        return f"its certificate is not trusted here ({why}): SSL_CERT_FILE=FILE names certificates that are"
    except aiohttp.ClientError as exc:
        return why_unreachable(exc)
    except (ValueError, OSError) as exc:
        return str(exc) or type(exc).__name__


def why_unreachable(exc: aiohttp.ClientError) -> str:
    """Return the system's reason if no connection was made, such as "Connection refused"; else aiohttp's message."""
    if isinstance(exc, aiohttp.ClientConnectorError):
        cause = exc.os_error
        is_errno = cause.errno is not None and not isinstance(cause, socket.gaierror | ssl.SSLError)
        why = os.strerror(cause.errno or 0) if is_errno else str(cause.strerror or cause)
        if isinstance(exc, aiohttp.ClientProxyConnectionError):
            return f"{why} by the proxy {exc.host}:{exc.port}, which an environment variable such as HTTPS_PROXY names"
        return why
    return " ".join(str(exc).split()) or type(exc).__name__


async def require_endpoint(base_url: str) -> None:
    """Check a server once.

    Raises:
        UsageError: The server does not answer.
    """
    if (silence := await find_silence(base_url)) is not None:
        raise UsageError(f"--base-url {base_url}: {silence}")


async def watch_endpoint(base_url: str) -> None:
    """Check a server every ``POLL_SEC`` seconds, until it is gone or this is cancelled.

    Raises:
        ServiceLostError: The server did not answer ``LOOKS`` checks in a row.
    """
    silent = 0
    while True:
        await asyncio.sleep(POLL_SEC)
        silence = await find_silence(base_url)
        silent = silent + 1 if silence is not None else 0
        if silent == LOOKS:
            raise ServiceLostError(f"the server at {base_url} is gone: {silence}")
