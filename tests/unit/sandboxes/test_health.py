"""HEALTHCHECK: an image's declaration, and when it is met or given up."""

from typing import Any

import pytest

from harbor_gym.errors import TaskError
from harbor_gym.sandboxes.health import Healthcheck, await_health, healthcheck_config, healthcheck_of


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({}, None),
        ({"Healthcheck": {"Test": ["NONE"]}}, None),
        ({"Healthcheck": {"Test": []}}, None),
        ({"Healthcheck": {"Test": ["CMD", "test", "-e", "/x"]}}, ("test", "-e", "/x")),
        ({"Healthcheck": {"Test": ["CMD-SHELL", "a && b"]}}, ("/bin/sh", "-c", "a && b")),
        ({"Healthcheck": {"Test": ["CMD-SHELL", "a"]}, "Shell": ["/bin/bash", "-ec"]}, ("/bin/bash", "-ec", "a")),
    ],
)
def test_what_is_run(config: dict[str, Any], argv: tuple[str, ...] | None) -> None:
    found = healthcheck_of(config)
    assert (found and found.argv) == argv


def test_times_have_dockers_defaults_and_survive_being_written() -> None:
    plain = healthcheck_of({"Healthcheck": {"Test": ["CMD", "x"]}})
    assert plain == Healthcheck(("x",), 30.0, 30.0, 0.0, 5.0, 3)
    other = Healthcheck(("x", "y"), 1.5, 2.0, 3.0, 0.25, 9)
    assert healthcheck_of(healthcheck_config(other)) == other
    assert healthcheck_of(healthcheck_config(None)) is None


class Checks:
    """Statuses to answer with, and the pauses between."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.limits, self.pauses = list(statuses), list[float](), list[float]()

    async def check(self, limit_sec: float) -> tuple[int, str]:
        self.limits.append(limit_sec)
        return self.statuses.pop(0), "not yet"

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_the_first_success_is_enough() -> None:
    checks = Checks(0)
    await await_health(Healthcheck(("x",), timeout_sec=7.0), checks.check, checks.sleep)
    assert (checks.limits, checks.pauses) == ([7.0], [])


async def test_the_check_at_once_does_not_count_and_so_many_failures_are_the_end() -> None:
    checks = Checks(1, 1, 1, 0)
    await await_health(Healthcheck(("x",), interval_sec=2.0, retries=3), checks.check, checks.sleep)
    assert checks.pauses == [2.0, 2.0, 2.0]
    checks = Checks(1, 1, 4)
    with pytest.raises(TaskError, match=r"unhealthy: its HEALTHCHECK \['x'\] failed 2 times .* status 4: not yet"):
        await await_health(Healthcheck(("x",), retries=2), checks.check, checks.sleep)


async def test_failures_in_the_start_period_do_not_count() -> None:
    checks = Checks(1, 1, 1, 1, 0)
    declared = Healthcheck(("x",), interval_sec=9.0, start_period_sec=1000.0, start_interval_sec=1.0, retries=1)
    await await_health(declared, checks.check, checks.sleep)
    assert checks.pauses == [1.0] * 4
