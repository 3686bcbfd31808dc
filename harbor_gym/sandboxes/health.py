"""The HEALTHCHECK of an image: a sandbox is ready when its check succeeds, as with Compose's ``--wait``.

Source: the Docker Engine's daemon/health.go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harbor_gym.sandboxes.errors import TaskError

_NANOSECONDS = 1e9
_DEFAULT_SEC, _DEFAULT_RETRIES, _DEFAULT_START_INTERVAL_SEC = 30.0, 3, 5.0
_SHELL = ("/bin/sh", "-c")
_LAST_CHARACTERS = 2000

Check = Callable[[float], Awaitable[tuple[int, str]]]
"""Runs the check once, with a limit in seconds; returns its status and its output."""


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """An image's HEALTHCHECK."""

    argv: tuple[str, ...]
    interval_sec: float = _DEFAULT_SEC
    timeout_sec: float = _DEFAULT_SEC
    start_period_sec: float = 0.0
    """Seconds in which failures don't count."""

    start_interval_sec: float = _DEFAULT_START_INTERVAL_SEC
    """Pause between checks in the start period."""

    retries: int = _DEFAULT_RETRIES
    """Failures in a row after which the image is unhealthy."""


def healthcheck_of(config: Mapping[str, Any]) -> Healthcheck | None:
    """Read the HEALTHCHECK of an image's configuration; None if it has none, or disabled its base's."""
    found = config.get("Healthcheck") or {}
    match found.get("Test") or ["NONE"]:
        case ["CMD", *words] if words:
            argv = tuple(words)
        case ["CMD-SHELL", text]:
            argv = (*(config.get("Shell") or _SHELL), text)
        case _:
            return None
    return Healthcheck(
        argv,
        _seconds(found, "Interval") or _DEFAULT_SEC,
        _seconds(found, "Timeout") or _DEFAULT_SEC,
        _seconds(found, "StartPeriod"),
        _seconds(found, "StartInterval") or _DEFAULT_START_INTERVAL_SEC,
        found.get("Retries") or _DEFAULT_RETRIES,
    )


def healthcheck_config(check: Healthcheck | None) -> dict[str, Any]:
    """Return a configuration that :func:`healthcheck_of` reads as ``check``."""
    if check is None:
        return {}
    times = {
        "Interval": check.interval_sec,
        "Timeout": check.timeout_sec,
        "StartPeriod": check.start_period_sec,
        "StartInterval": check.start_interval_sec,
    }
    numbers = {name: round(seconds * _NANOSECONDS) for name, seconds in times.items()}
    return {"Healthcheck": {"Test": ["CMD", *check.argv], "Retries": check.retries, **numbers}}


def _seconds(found: Mapping[str, Any], name: str) -> float:
    return (found.get(name) or 0) / _NANOSECONDS


async def await_health(
    healthcheck: Healthcheck, check: Check, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Wait until the check succeeds.

    Docker waits an interval before the first check. Here one more runs at once, whose failure does not count.

    Args:
        healthcheck: The times and limits.
        check: Runs the check.
        sleep: Waits between checks; tests replace it.

    Raises:
        TaskError: It failed as often as the image allows.
    """
    started, failures = time.monotonic(), -1
    while True:
        status, output = await check(healthcheck.timeout_sec)
        if status == 0:
            return
        is_starting = time.monotonic() - started < healthcheck.start_period_sec
        failures += 0 if is_starting and failures >= 0 else 1
        if failures >= healthcheck.retries:
            raise unhealthy(healthcheck, failures, status, output)
        pause = healthcheck.interval_sec
        await sleep(min(pause, healthcheck.start_interval_sec) if is_starting else pause)


def unhealthy(healthcheck: Healthcheck, failures: int, status: int, output: str) -> TaskError:
    """Return the error of an image whose check failed too often, with the last status and output."""
    return TaskError(
        f"the image is unhealthy: its HEALTHCHECK {list(healthcheck.argv)} failed {failures} times in a row, "
        f"at last with status {status}: {output.strip()[-_LAST_CHARACTERS:]}"
    )
