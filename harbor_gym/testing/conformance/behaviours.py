"""Behaviours: small named checks of one property each, and the helper functions for writing them."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

from harbor_gym.errors import UsageError, printable
from harbor_gym.testing.conformance.report import Outcome, Verdict

_SHOWN_CHARACTERS = 300

type Check[S] = Callable[[S], Awaitable[None]]


class Violation(AssertionError):
    """A behaviour does not hold."""


class NotApplicable(Exception):
    """The subject's declared capabilities exclude this behaviour."""


@dataclass(frozen=True, slots=True)
class Behaviour[S]:
    """One property and its check."""

    name: str
    family: str
    contract: str
    check: Check[S]

    alone: bool = False
    """The check changes state that other checks would notice, so it never runs concurrently with them."""


class Family[S](list[Behaviour[S]]):
    """The behaviours of one kind, in source order."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def behaviour(self, check: Check[S]) -> Check[S]:
        """Add a check; its name and docstring are the behaviour's name and contract."""
        return self._add(check, alone=False)

    def behaviour_alone(self, check: Check[S]) -> Check[S]:
        """Add a check that never runs concurrently with others."""
        return self._add(check, alone=True)

    def _add(self, check: Check[S], *, alone: bool) -> Check[S]:
        name, contract = getattr(check, "__name__", ""), inspect.getdoc(check) or ""
        self.append(Behaviour(name, self.name, contract, check, alone))
        return check


def select[S](
    behaviours: Sequence[Behaviour[S]], *, only: Collection[str] | None, known_failures: Mapping[str, str]
) -> list[Behaviour[S]]:
    """Return the behaviours whose name or family is in ``only``; all of them for None.

    Raises:
        UsageError: A name in ``only`` or ``known_failures`` belongs to no behaviour.
    """
    names = {item.name for item in behaviours}
    families = {item.family for item in behaviours}
    unknown = (set(only or ()) - names - families) | (set(known_failures) - names)
    if unknown:
        raise UsageError(f"no behaviour is called {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    return [item for item in behaviours if only is None or item.name in only or item.family in only]


async def observe[S](
    behaviour: Behaviour[S], subject: S, *, known_failures: str | None, probe_known_failures: bool, timeout_sec: float
) -> Outcome:
    """Check one behaviour; an exception of the check becomes its outcome.

    Args:
        behaviour: The behaviour to check.
        subject: The sandbox or environment under test.
        known_failures: Why the behaviour is known not to hold; None: it must hold.
        probe_known_failures: Also check a known failure, and fail it if it holds, because its entry is out of date.
        timeout_sec: A check that takes longer has failed.
    """
    started = time.monotonic()
    if known_failures is not None and not probe_known_failures:
        verdict, reason = Verdict.KNOWN_FAILURE, known_failures
    else:
        verdict, reason = await _try(behaviour, subject, timeout_sec)
    if known_failures is not None and verdict is Verdict.FAILED:
        verdict, reason = Verdict.KNOWN_FAILURE, known_failures
    elif known_failures is not None and verdict is Verdict.PASSED:
        verdict, reason = Verdict.FAILED, f"it holds, though it is a known failure: {known_failures}"
    seconds = time.monotonic() - started
    return Outcome(behaviour.name, behaviour.family, behaviour.contract, verdict, printable(reason), seconds)


async def _try[S](behaviour: Behaviour[S], subject: S, timeout_sec: float) -> tuple[Verdict, str]:
    limit = asyncio.timeout(timeout_sec)
    try:
        async with limit:
            await behaviour.check(subject)
    except NotApplicable as exc:
        return Verdict.NOT_APPLICABLE, str(exc)
    except Violation as exc:
        return Verdict.FAILED, str(exc)
    except Exception as exc:  # The boundary to the subject: any exception is the finding.
        if limit.expired():
            return Verdict.FAILED, f"it was not over after {timeout_sec:g} s"
        return Verdict.FAILED, f"{type(exc).__name__}: {exc}"
    return Verdict.PASSED, ""


# --- helpers for checks ----------------------------------------------------------------------------------------------


def expect(holds: object, message: str) -> None:
    """Raise :class:`Violation` unless ``holds``. Unlike ``assert``, this also works under ``python -O``."""
    if not holds:
        raise Violation(message)


def expect_equal(found: object, expected: object, what: str) -> None:
    """Raise :class:`Violation` unless ``found`` equals ``expected``."""
    if found != expected:
        raise Violation(f"{what}: expected {_shown(expected)}, found {_shown(found)}")


@contextlib.contextmanager
def refused(what: str, *kinds: type[Exception]) -> Generator[None]:
    """Expect the block to raise one of ``kinds``, or any exception if none is given."""
    try:
        yield
    except Exception as exc:  # The boundary to the subject: an exception is the expected result.
        if kinds and not isinstance(exc, kinds):
            raise
        return
    wanted = " or ".join(kind.__name__ for kind in kinds) or "an error"
    raise Violation(f"{what} should have raised {wanted}, and raised nothing")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"
