"""Every kind of finding: its severity, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harbor_gym.tasks.receipts import Evidence, Finding, Severity

LONGEST = 500
"""Characters of a line or an output that a finding quotes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding."""

    severity: Severity
    meaning: str
    """What it says about a task, for the table of the kinds."""

    remedy: str


def _error(meaning: str, remedy: str) -> Kind:
    return Kind(Severity.ERROR, meaning, remedy)


def _note(meaning: str, remedy: str) -> Kind:
    return Kind(Severity.NOTE, meaning, remedy)


def _warning(meaning: str, remedy: str) -> Kind:
    return Kind(Severity.WARNING, meaning, remedy)


_GUARD = "give the policy a user of its own, or the verifier a sandbox of its own or a pristine view"
KINDS = {
    "verdict/oracle-fails": _error(
        "the task's own solution does not score 1", "repair the solution or the verifier: see the verifier's output"
    ),
    "verdict/nop-paid": _error("doing nothing scores", "let the verifier test what the work changes"),
    "verdict/untrying-paid": _error(
        "empty files and printed quotations score", "let the verifier test the content of the work"
    ),
    "verdict/forgeable": _error("the reward can be forged", _GUARD),
    "verdict/no-verdict": _error(
        "the verifier leaves no reward that counts", "let it write one finite number to /logs/verifier in every case"
    ),
    "verdict/sandbox-failed": _error(
        "its sandbox can't be built or started, or goes away",
        "repair the image, or this machine; the next audit tries the task again",
    ),
    "verdict/too-long": _error("its trials do not end", "lower the task's time limits, or raise --task-timeout"),
    "verdict/refused": _warning("this kind of sandbox does not run it", "audit it on another sandbox (--env)"),
    "verdict/no-solution": _warning("nothing shows that it can be solved", "add solution/solve.sh"),
    "vacuous/runner-fails": _error(
        "a reward is paid although every interpreter and test runner fails",
        "pay only after the test command has exited with status 0",
    ),
    "vacuous/status-eaten": _error(
        "the tests' exit status does not reach the reward",
        "test the status of the test command itself: no `|| true`, `set -o pipefail` before a pipe, no command between",
    ),
    "vacuous/unconditional": _error("a reward of 1 is written in every case", "write 1 only after a test has passed"),
    "vacuous/tests-skipped": _error("every test is skipped", "let the tests run, or fail where they can't"),
    "vacuous/no-tests": _error("no test is collected", "name the tests so that the runner collects them"),
    "vacuous/no-assertion": _error("no test can fail", "let each test assert what the instruction asks for"),
    "leak/solution": _error("the policy is given the solution", "remove it from what the policy can read"),
    "leak/tests": _error("the policy is given the tests", "keep them in tests/, which is copied in to grade"),
    "leak/expected": _error("the policy is given the expected result", "keep it in tests/, or grade by a digest"),
    "flaky/differs": _error("the same agent scores differently in another run", "remove what the verdict depends on"),
    "flaky/one-processor": _warning(
        "the same agent scores differently on one processor", "wait for what is to happen, not for a time"
    ),
    "flaky/under-load": _warning(
        "the same agent scores differently with a quarter of a processor's time",
        "wait for what is to happen, not for a time; raise the time limits",
    ),
    "flaky/time-zone": _warning(
        "the same agent scores differently in another time zone", "compare times in UTC, or set TZ in the image"
    ),
    "flaky/host-name": _warning(
        "the same agent scores differently under another host name", "ask for the name (`hostname`), or use localhost"
    ),
    "flaky/slow": _warning("the solution takes more than half of a time limit", "raise the limit"),
    "hygiene/unpinned": _warning("a download without a version", "name a version, a commit or a checksum"),
    "hygiene/needs-network": _warning(
        "it can't be solved or graded without a network, and does not declare that it needs one",
        'set [environment] network_mode = "public", or put into the image what is downloaded',
    ),
    "hygiene/build-differs": _warning(
        "two builds of an image have other files", "name versions, sort what is generated, seed what is random"
    ),
    "hygiene/author-path": _warning("a path of an author's machine", "use a path that the image has"),
    "hygiene/secret": _error("a secret", "revoke it, and take it from the environment instead"),
    "task/malformed": _error("Harbor can't read the task", "repair the file that the message names"),
    "task/no-verifier": _error("nothing grades the task", "add tests/test.sh, which writes /logs/verifier/reward.txt"),
    "set/name-collision": _warning("another task has its name", "rename one of them"),
    "set/duplicate": _warning("another task has its instruction and its tests", "keep one of them"),
    "set/near-duplicate": _warning("another task has almost its instruction and tests", "keep one of them"),
    "episodes/paid-without-work": _error(
        "an episode is paid although the policy has done nothing", "let the verifier test what the work changes"
    ),
    "episodes/reward-written": _error("the policy writes the reward, or changes the tests", _GUARD),
    "episodes/tests-read": _error(
        "the policy reads the tests or what the verifier wrote", "keep them in tests/, which is copied in to grade"
    ),
    "episodes/tests-skipped": _error(
        "an episode is paid although no test has run", "let the tests run, or fail where they can't"
    ),
    "episodes/flaky": _error(
        "an episode has another verdict when it is graded again", "remove what the verdict depends on"
    ),
    "episodes/view-differs": _warning(
        "an episode that is paid has another verdict in a pristine view",
        "see what it changed outside of the view's paths: declare them ([metadata] verify_paths), or give the verifier "
        "a sandbox of its own",
    ),
    "episodes/limits-hit": _warning("most episodes end at a limit", "raise the limit, or make the task shorter"),
    "episodes/never-paid": _note("no episode is paid", "train on it later, or show that it can be solved"),
    "episodes/always-paid": _note("every episode is paid in full", "leave it out: it teaches nothing"),
}
"""Kind → what it means, in the order of the documentation's table."""


def finding(kind: str, message: str, evidence: Iterable[Evidence] = ()) -> Finding:
    """Return a finding of a kind."""
    known = KINDS[kind]
    return Finding(kind=kind, severity=known.severity, message=message, remedy=known.remedy, evidence=tuple(evidence))


def at(file: str, line: int | None = None, text: str = "") -> Evidence:
    """Return a place in a file, with its text cut to what a receipt quotes."""
    return Evidence(file=file, line=line, text=text.strip()[:LONGEST] or None)
