"""``bench singularity``: its table, and on the real programs that both kinds of sandboxes do their work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.reset import OURS, ResetRow
from tests.benchmarks.scenarios import LIST
from tests.benchmarks.singularity import MemoryRow, SingularityReport, format_singularity
from tests.benchmarks.steps import HARBOR, PERSISTENT, Sample, summarize
from tests.helpers.paths import ROOT


def reset(way: str, at_once: int, milliseconds: float) -> ResetRow:
    return ResetRow(way, at_once, 1, milliseconds, milliseconds, 2 * milliseconds, 10.0, milliseconds / 2, 1.0)


def sample(implementation: str, seconds: float, observation: str | None = None) -> Sample:
    return Sample(LIST, implementation, 0, seconds, 1, 0, observation)


def test_resets_steps_and_memory_stand_in_one_table() -> None:
    steps = summarize(
        [sample(PERSISTENT, 0.01), sample(HARBOR, 0.2, "too early")],
        sandbox="apptainer", repeat=1, fallbacks={}, unavailable={},
    )  # fmt: skip
    resets = [reset(way, size, time) for size in (1, 8) for way, time in ((OURS, 100.0), (HARBOR, 400.0))]
    memory = [MemoryRow(OURS, 190.4, 0.31, True, True), MemoryRow(HARBOR, 321.0, 3.5, True, False)]
    report = SingularityReport(resets, steps, memory)
    text = " ".join(format_singularity(report).split())
    assert "reset: sandbox 50.0 200.0 4.0 " in text
    assert "reset: to the first prompt 100.0 400.0 4.0 " in text
    assert "reset: 8 at once, all 200.0 800.0 4.0 " in text
    assert f"step: {LIST} 10.0 200.0 20.0 1/1 0/1" in text
    assert "apptainer: killed after 0.3 s, 190 MiB at most; the sandbox runs further commands" in text
    assert "Harbor's singularity: killed after 3.5 s, 321 MiB at most; the sandbox is gone" in text
    assert report.is_right
    assert set(report.as_object()) == {"resets", "steps", "memory"}


BENCH = (sys.executable, "-m", "tests.benchmarks", "singularity", "--at-once", "2", "--repeat", "1", "--json")
WITH_IDS = 'mount --bind "$1" /etc/subuid && mount --bind "$1" /etc/subgid && shift && exec "$@"'
"""Harbor's own sandbox takes subordinate ids, also where root runs it, which few machines give to root."""


@pytest.mark.apptainer
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_both_kinds_of_sandboxes_take_every_step(tmp_path: Path) -> None:
    ids = tmp_path / "subuid"
    ids.write_text("root:100000:65536\n")
    own = ["unshare", "--mount", "sh", "-c", WITH_IDS, "sh", str(ids)] if os.geteuid() == 0 else []
    done = subprocess.run([*own, *BENCH], cwd=ROOT, capture_output=True, text=True, check=False)
    if "SingularityEnvironment' did not start" in done.stderr:
        pytest.skip("Harbor's own sandbox did not start: its server takes a port that it only saw free")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    ways = [(row["way"], row["at_once"]) for row in report["resets"]]
    assert ways == [(OURS, 1), (HARBOR, 1), (OURS, 2), (HARBOR, 2)]
    right = {row["implementation"]: row["correct"] for row in report["steps"]["rows"] if row["row"] == "sleep 0.3"}
    assert right[PERSISTENT] == 1
    assert set(right) == {PERSISTENT, HARBOR}, "Harbor's own may return too early: that is a finding, not a failure"
    ours = report["memory"][0]
    assert (ours["way"], ours["is_ended"], ours["lives_on"]) == (OURS, True, True)
