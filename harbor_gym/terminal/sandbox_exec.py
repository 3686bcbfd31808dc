"""The terminal's only caller of Harbor's ``exec``: it turns every exception of an environment into a SandboxError."""

import asyncio
import contextlib
import math
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from harbor_gym.errors import HarborGymError, SandboxLostError, SandboxTimeoutError

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment, ExecResult  # 0.3 s to import, and only types are needed

GRACE_SEC = 15.0
"""Seconds after its own timeout that an environment gets to report it."""


async def run_in_sandbox(
    environment: "BaseEnvironment",
    command: str,
    *,
    timeout_sec: float,
    user: str | int | None,
    purpose: str,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    service: str | None = None,
) -> "ExecResult":
    """Run ``command`` once, in ``cwd`` or by default in the task's workdir, which a policy may have removed.

    With ``service`` it runs in that one of the task's Compose file, by default in its own directory.

    ``purpose`` completes the sentence "the sandbox could not …" in error messages.

    Raises:
        SandboxTimeoutError: The command did not finish in time; it may still be running in the sandbox.
        SandboxLostError: The environment could not run it at all.
    """
    limit = math.ceil(timeout_sec)
    with lost_for_all_else(environment, purpose):
        try:
            async with asyncio.timeout(limit + GRACE_SEC):
                run = environment.exec if service is None else partial(environment.service_exec, service=service)
                return await run(command, cwd=cwd, env=env, timeout_sec=limit, user=user)
        except (TimeoutError, SandboxTimeoutError) as error:
            raise _timeout(environment, purpose, limit) from error
        except HarborGymError:
            raise
        except Exception as error:
            if "timed out" in str(error).lower():
                raise _timeout(environment, purpose, limit) from error
            raise


@contextlib.contextmanager
def lost_for_all_else(environment: "BaseEnvironment", purpose: str) -> Generator[None]:
    """Turn an exception of the block that is no :class:`HarborGymError` into a :class:`SandboxLostError`.

    It is the boundary to foreign code: environments pass on the exceptions of their client library. ``purpose`` is as
    for :func:`run_in_sandbox`.
    """
    try:
        yield
    except HarborGymError:
        raise
    except Exception as error:
        raise SandboxLostError(
            f"Sandbox {environment.session_id!r} could not {purpose}: {type(error).__name__}: {error}. "
            "Run the episode again in a fresh sandbox."
        ) from error


def _timeout(environment: "BaseEnvironment", purpose: str, limit: int) -> SandboxTimeoutError:
    return SandboxTimeoutError(
        f"Sandbox {environment.session_id!r} could not {purpose} within {limit} s. "
        "It hangs or is overloaded: run the episode again in a fresh sandbox, with fewer at a time."
    )
