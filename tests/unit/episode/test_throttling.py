"""A provider's throttling is recognised among failures, however its client reports it and however that is wrapped."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from harbor_gym.episode.throttling import is_throttled, retry_after_sec
from harbor_gym.errors import SandboxThrottledError


class TooManyRequestsError(Exception):
    """Named as a throttling."""


class ClientError(Exception):
    """An error of a client library: words, and any attributes."""

    def __init__(self, words: str = "no", **attributes: Any) -> None:
        super().__init__(words)
        self.__dict__.update(attributes)


def answered(status: int, **headers: str) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={name.replace("_", "-"): text for name, text in headers.items()})


@pytest.mark.parametrize(
    ("error", "throttled", "seconds"),
    [
        (TooManyRequestsError(), True, None),
        (ClientError(retry_after=2.5), True, 2.5),
        (ClientError(retry_after="7"), True, 7.0),
        (ClientError(retry_after_seconds=0), True, 0.0),
        (ClientError(retry_after=-3), True, 0.0),
        (ClientError(retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), False, None),
        (ClientError(status_code=429), True, None),
        (ClientError(status=429), True, None),
        (ClientError(status=503), False, None),
        (ClientError(response=answered(429)), True, None),
        (ClientError(response=answered(503, retry_after="4")), True, 4.0),
        (ClientError(response=answered(503)), False, None),
        (ClientError(headers={"retry-after": "5"}), True, 5.0),
        (ClientError("HTTP status: 429"), True, None),
        (ClientError("429 Too Many Requests; Retry-After: 12"), True, 12.0),
        (ClientError("Total CPU quota exceeded"), True, None),
        (ClientError("rate limited, try again in 3 seconds"), True, 3.0),
        (ClientError("please retry in 1.5s"), True, 1.5),
        (SandboxThrottledError("later", 4.0), True, 4.0),
        (SandboxThrottledError("later", None), True, None),
        (ClientError("the build failed with status 2 after 429 lines"), False, None),
        (FileNotFoundError("disk_quota.txt"), False, None),
    ],
)
@pytest.mark.parametrize("link", ["__cause__", "__context__", None])
def test_a_providers_throttling_is_distinguished_from_a_failure(
    error: Exception, throttled: bool, seconds: float | None, link: str | None
) -> None:
    outermost = error if link is None else RuntimeError("could not start")
    if link is not None:
        setattr(outermost, link, error)
    assert is_throttled(outermost) is throttled
    assert retry_after_sec(outermost) == seconds


def test_what_is_nearest_is_asked_first_and_a_circle_ends() -> None:
    outer, inner = ClientError(retry_after=1), ClientError(retry_after=2)
    outer.__cause__, inner.__cause__ = inner, outer
    assert (retry_after_sec(outer), retry_after_sec(inner)) == (1.0, 2.0)
    plain, other = RuntimeError("a"), RuntimeError("b")
    plain.__cause__, other.__cause__ = other, plain
    assert not is_throttled(plain)


def test_a_throttled_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(SandboxThrottledError("later", 4.0)))
    assert (str(error), error.retry_after_sec, error.is_infrastructure) == ("later", 4.0, True)
