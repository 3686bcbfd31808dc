"""The result of a conformance check: one outcome per behaviour, as text, as JSON, or as an error."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

REPORT_FORMAT = 1
"""Version of :meth:`Report.as_object`."""


class Verdict(StrEnum):
    """The verdict on one behaviour."""

    PASSED = "passed"
    FAILED = "failed"

    NOT_APPLICABLE = "not applicable"
    """The subject's declared capabilities exclude the behaviour."""

    KNOWN_FAILURE = "known failure"
    """The behaviour is known not to hold, for a recorded reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one behaviour's check."""

    name: str
    """The behaviour's name, a sentence in small letters."""

    family: str
    """The behaviour's family: ``commands``, ``uploads`` …"""

    contract: str
    """The requirement, in a sentence or two."""

    verdict: Verdict

    reason: str = ""
    """Why the behaviour did not pass; empty if it passed."""

    seconds: float = 0.0
    """Duration of the check."""


class ConformanceError(AssertionError):
    """A required behaviour does not hold. The message has every such behaviour with its contract."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of one check, one per behaviour."""

    subject: str
    """The checked sandbox or environment."""

    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Return whether nothing failed and something passed."""
        return not self.failures and any(item.verdict is Verdict.PASSED for item in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """Return the outcomes that failed."""
        return tuple(item for item in self.outcomes if item.verdict is Verdict.FAILED)

    def __getitem__(self, name: str) -> Outcome:
        for item in self.outcomes:
            if item.name == name:
                return item
        raise KeyError(name)

    def raise_for_failures(self) -> None:
        """Raise if a behaviour failed, or if none passed.

        Raises:
            ConformanceError: Its message lists the failures, their reasons, and the contract.
        """
        if not self.ok:
            raise ConformanceError(str(self))

    def __str__(self) -> str:
        counts = Counter(item.verdict for item in self.outcomes)
        summary = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        return "\n".join([f"{self.subject}: {summary or 'nothing was checked'}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        width = max((len(item.name) for item in self.outcomes), default=0)
        for item in self.outcomes:
            if item.verdict is Verdict.PASSED:
                continue
            reason = "\n      ".join(item.reason.splitlines())
            yield f"  {item.name:<{width}}  {item.verdict.value}: {reason}"
            if item.verdict is Verdict.FAILED:
                yield f"      contract: {' '.join(item.contract.split())}"

    def as_object(self) -> dict[str, object]:
        """Return the report as plain data for JSON."""
        outcomes = [{**asdict(item), "seconds": round(item.seconds, 3)} for item in self.outcomes]
        return {"format": REPORT_FORMAT, "subject": self.subject, "ok": self.ok, "outcomes": outcomes}
