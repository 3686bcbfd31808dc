"""Receipts of an audit: what was found in one task, for one content of its files. ``harbor-gym audit`` writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from harbor_gym._runtime.files import StrPath, replace_text
from harbor_gym._runtime.json_files import read_document
from harbor_gym._runtime.unchanged import UntilChanged
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.tasks.resolve import SourcedTask, content_digest
from harbor_gym.types import Severity

if TYPE_CHECKING:
    from harbor_gym.config import EpisodeConfig

_logger = logging.getLogger(__name__)

FORMAT: Literal[3] = 3
FOLDER = "receipts"
"""The folder of the receipts within an audit's folder."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evidence(_Record):
    """One place that shows a finding."""

    file: str | None = None
    """A path in the task's directory; ``a.tar!b`` is the member ``b`` of the archive ``a.tar``."""

    line: int | None = None
    """The line in the file, from 1."""

    episode: str | None = None
    """An episode's transcript."""

    turn: int | None = None
    """The turn in the episode, from 1."""

    text: str | None = None
    """The line, a command, or the end of a verifier's output, cut to 500 characters. Secrets are shortened."""

    reward: float | None = None
    """The reward that was paid."""

    @property
    def place(self) -> str:
        """A file with its line, or an episode with its turn; empty if neither is known."""
        if self.episode is not None:
            return self.episode + ("" if self.turn is None else f", turn {self.turn}")
        return (self.file or "") + ("" if self.line is None else f":{self.line}")


class Finding(_Record):
    """One thing that is wrong with a task."""

    kind: str
    """``family/name``, as in the table of docs/guide/audit.md."""

    severity: Severity
    message: str
    """What was found, in one sentence."""

    remedy: str
    """What to do about it."""

    evidence: tuple[Evidence, ...] = ()

    @property
    def is_of_the_set(self) -> bool:
        """Whether it is about more than the task's files, so that it must be found anew: other tasks, or a run."""
        return self.kind.startswith(("set/", "episodes/"))


class EpisodeGrades(_Record):
    """How often a sample of a run's stored episodes, or that of one task, has another verdict when graded anew."""

    sampled: int
    """Episodes that were drawn."""

    unreplayed: int
    """Episodes that can't be replayed: a screen differs, an agent played them, or their sandbox does not start."""

    flaky: int
    """Replayed episodes whose verdict differs between two gradings in the same view."""

    paid: int
    """Replayed episodes that are paid where the verifier sees all of the policy's sandbox, were graded in a pristine
    view, too, and are not flaky."""

    forged: int
    """Those of them whose verdict in the pristine view differs."""

    flake_rate: float | None
    """``flaky`` by the replayed episodes; None if there is none."""

    forge_rate: float | None
    """``forged`` by ``paid``; None if none is paid."""

    @classmethod
    def of(cls, *, sampled: int, unreplayed: int, flaky: int, paid: int, forged: int) -> Self:
        """Return the counts with their rates."""
        counts = {"sampled": sampled, "unreplayed": unreplayed, "flaky": flaky, "paid": paid, "forged": forged}
        return cls(**counts, flake_rate=_rate(flaky, sampled - unreplayed), forge_rate=_rate(forged, paid))

    @property
    def shares(self) -> dict[str, str]:
        """The rates with their counts, and what could not be replayed, as text."""
        return {
            "forge rate": _share(self.forged, self.paid, "paid episodes"),
            "flake rate": _share(self.flaky, self.sampled - self.unreplayed, "episodes"),
            "not replayed": f"{self.unreplayed} of {self.sampled}",
        }

    @classmethod
    def total(cls, grades: Iterable[Self]) -> Self:
        """Return the counts of several tasks together."""
        grades = list(grades)
        names = ("sampled", "unreplayed", "flaky", "paid", "forged")
        return cls.of(**{name: sum(getattr(one, name) for one in grades) for name in names})


def _share(number: int, among: int, what: str) -> str:
    return f"{number / among:.1%} ({number} of {among} {what})" if among else f"unknown (0 {what})"


def _rate(number: int, among: int) -> float | None:
    return number / among if among else None


def _of_this_version(number: object) -> object:
    """Read earlier formats: 2 added ``episode`` and ``turn`` to an evidence, 3 ``view`` and ``episodes``."""
    return FORMAT if number in (1, 2) else number


class Receipt(_Record):
    """The result of one task's audit."""

    format: Annotated[Literal[3], BeforeValidator(_of_this_version)] = FORMAT
    task: str
    """The task's name, unique in its audit."""

    path: str
    source: str | None = None
    commit: str | None = None
    digest: str
    """``sha256:…`` of the task's files, as in :class:`harbor_gym.tasks.SourcedTask`."""

    versions: dict[str, str]
    """Versions of ``harbor_gym`` and ``harbor``."""

    sandbox: str | None
    """The sandbox of its trials; None where only its files were read."""

    settings: dict[str, Any]
    """What else decides what could be found: runs of each agent, whether the reward was forged, the reward's key."""

    judged_at: str
    """UTC, as ISO 8601."""

    verdict: str | None
    """The verdict of ``harbor-gym check``; None where only the files were read."""

    findings: tuple[Finding, ...] = ()
    """The worst first."""

    view: tuple[str, ...] = ()
    """The paths of the policy's files in the pristine view that the solution passes in: declared, or proposed by
    ``check``; empty where there is no such view."""

    episodes: EpisodeGrades | None = None
    """What was found when stored episodes were graded anew; None if none of this task was."""

    durations: dict[str, float]
    """Seconds: ``static`` for reading the files, ``check`` for all trials, and by phase those of one trial."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong: there may be notes."""
        return self.severity in (None, Severity.NOTE)

    @property
    def severity(self) -> Severity | None:
        """The worst finding's severity; None without a finding."""
        return min((found.severity for found in self.findings), key=attrgetter("rank"), default=None)

    def file_in(self, folder: StrPath) -> Path:
        """Return the receipt's path in an audit's folder."""
        return Path(folder) / FOLDER / f"{self.task}-{_short(self.digest)}.json"

    def write(self, folder: StrPath) -> None:
        """Write the receipt into an audit's folder, atomically."""
        path = self.file_in(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, self.model_dump_json(indent=1) + "\n")


def _short(digest: str) -> str:
    return digest.rpartition(":")[2][:12]


def read_receipts(folder: StrPath, digest: str | None = None) -> dict[str, list[Receipt]]:
    """Return the receipts of an audit's folder by the tasks' digests.

    Args:
        folder: The folder of an audit.
        digest: Read only those of this digest; None reads all.

    Raises:
        UsageError: The folder holds no receipts, or one of them can't be read.
    """
    place = Path(folder) / FOLDER
    if not place.is_dir():
        raise UsageError(f"{folder} holds no receipts: name the folder of a harbor-gym audit (--output)")
    found: dict[str, list[Receipt]] = {}
    for path in sorted(place.glob("*.json" if digest is None else f"*-{_short(digest)}.json")):
        remedy = "remove it, and audit the task again"
        document = read_document(path, remedy=remedy)
        try:
            receipt = Receipt.model_validate(document)
        except ValidationError as exc:
            what = f"{path} is no receipt of format {FORMAT} ({exc.error_count()} fields differ)"
            raise UsageError(f"{what}: {remedy}") from exc
        found.setdefault(receipt.digest, []).append(receipt)
    return found


_digests = UntilChanged[str]()


def playable_tasks(tasks: Sequence[SourcedTask], episode: EpisodeConfig) -> list[SourcedTask]:
    """Return the tasks that an episode's ``require_audit`` lets through, as :func:`audited_tasks`; all without it.

    Raises:
        UsageError: As :func:`audited_tasks`.
    """
    return audited_tasks(tasks, episode.require_audit, refused=episode.refused_findings)


def require_audited(task_dir: Path, episode: EpisodeConfig) -> None:
    """Refuse a task that an episode's ``require_audit`` does not let through. Blocks.

    Raises:
        UsageError: The folder holds no receipts, or the task's can't be read.
        TaskError: The task has no receipt of its present files, or a finding that is refused.
    """
    if (folder := episode.require_audit) is None:
        return
    digest = _digests.get(task_dir, lambda: content_digest(task_dir))
    found = read_receipts(folder, digest).get(digest)
    if found is None:
        raise TaskError(f"{task_dir} has no receipt of its present files in {folder}: audit it (harbor-gym audit)")
    if worst := _findings(found, episode.refused_findings):
        kinds = ", ".join(sorted({one.kind for one in worst}))
        raise TaskError(f"{task_dir} has findings in {folder} ({kinds}): repair it, and audit it again")


def _findings(receipts: Iterable[Receipt], refused: Severity) -> list[Finding]:
    """Return the findings of a task's receipts that are as bad as ``refused``."""
    return [one for receipt in receipts for one in receipt.findings if one.severity.rank <= refused.rank]


def audited_tasks(
    tasks: Sequence[SourcedTask], folder: StrPath | None, *, refused: Severity = Severity.ERROR
) -> list[SourcedTask]:
    """Return the tasks with a receipt of their present files and no finding that is refused; log how many are left out.

    Args:
        tasks: Tasks as :func:`harbor_gym.tasks.resolve_tasks` returns them.
        folder: The folder of an audit; None leaves no task out.
        refused: The least severity of a finding that keeps a task out.

    Raises:
        UsageError: The folder holds no receipts, one of them can't be read, or no task is left.
    """
    if folder is None:
        return list(tasks)
    receipts = read_receipts(folder)
    unknown = [task for task in tasks if task.digest not in receipts]
    bad = {digest for digest, found in receipts.items() if _findings(found, refused)}
    kept = [task for task in tasks if task.digest in receipts and task.digest not in bad]
    if len(kept) == len(tasks):
        return kept
    left_out = (
        f"of {len(tasks)} tasks {len(tasks) - len(kept)} are left out: {len(unknown)} have no receipt of their present "
        f"files in {folder}, {len(tasks) - len(kept) - len(unknown)} have a finding of severity {refused} or worse"
    )
    if not kept:
        raise UsageError(f"{left_out}: audit them (harbor-gym audit), or repair them")
    _logger.warning("%s", left_out)
    return kept
