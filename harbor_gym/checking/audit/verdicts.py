"""Findings from a check's verdict: one core, so that `check` and `audit` never disagree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harbor_gym.checking.audit.kinds import finding
from harbor_gym.checking.verdict import UNSOLVED, TaskCheck, Verdict
from harbor_gym.tasks.receipts import Evidence, Finding

_KINDS = {
    Verdict.REFUSED: "verdict/refused",
    Verdict.ERROR: "verdict/no-verdict",
    Verdict.UNSOLVED: "verdict/oracle-fails",
    Verdict.TRIVIAL: "verdict/nop-paid",
    Verdict.FLAKY: "flaky/differs",
    Verdict.FORGEABLE: "verdict/forgeable",
    Verdict.UNPROVEN: "verdict/no-solution",
}
_SUMMARY = re.compile(
    r"(?P<counts>(?:\d+ \w+(?:, )?)+) in [\d.:]+ ?s|Ran (?P<ran>\d+) tests? in|(?P<none>no tests ran|collected 0 items)"
)


def find_in_check(check: TaskCheck) -> Iterator[Finding]:
    """Yield what a check's result says. A task whose check is ok has no finding but one about its tests' output."""
    verdict = check.verdict
    if verdict is not Verdict.OK:
        kind = "verdict/sandbox-failed" if verdict is Verdict.ERROR and check.is_lost else _KINDS[verdict]
        is_malformed = verdict is Verdict.ERROR and (check.error or "").startswith("task:")
        if not is_malformed:  # found by reading the task
            yield finding(kind, check.reason or verdict.value, _evidence(check, verdict))
    if (what := ran_nothing(check.solved_output)) is not None:
        kind, why = what
        evidence = Evidence(text=check.solved_output[-500:], reward=check.oracle[-1] if check.oracle else None)
        yield finding(kind, f"the solution is paid although {why}", [evidence])


def _evidence(check: TaskCheck, verdict: Verdict) -> Iterator[Evidence]:
    rewards = {
        Verdict.UNSOLVED: check.oracle[:1],
        Verdict.TRIVIAL: [reward for reward in check.nop if reward != UNSOLVED][:1],
        Verdict.FORGEABLE: [check.forged],
        Verdict.FLAKY: [],
    }.get(verdict, [])
    output = check.shown_output[-500:] or None
    if output is not None or rewards:
        yield Evidence(text=output, reward=next(iter(rewards), None))


def ran_nothing(output: str) -> tuple[str, str] | None:
    """Return the kind and the reason where the verifier's output of a paid run has tests of which none has run."""
    summaries = list(_SUMMARY.finditer(output))
    if not summaries:
        return None
    counts: dict[str, int] = {}
    for found in summaries:
        if found["none"] or found["ran"] == "0":
            counts["none"] = 0
        elif found["ran"]:
            skipped = re.search(r"skipped=(\d+)", output)
            counts["ran"] = counts.get("ran", 0) + int(found["ran"]) - (int(skipped[1]) if skipped else 0)
            counts["skipped"] = int(skipped[1]) if skipped else 0
        else:
            for number, word in re.findall(r"(\d+) (\w+)", found["counts"]):
                counts[word] = counts.get(word, 0) + int(number)
    if any(counts.get(word, 0) for word in ("passed", "failed", "ran", "error", "errors", "xpassed")):
        return None
    if counts.get("skipped", 0) or counts.get("xfailed", 0):
        return "vacuous/tests-skipped", "every test was skipped or expected to fail"
    if "none" in counts or counts.get("deselected", 0):
        return "vacuous/no-tests", "no test was run"
    return None
