"""The benchmarks of sandboxes and episodes: that they run, and their conclusions. No figure is a verdict here."""

import json

import pytest

from harbor_gym._runtime.procfs import descendants
from tests.benchmarks.episode import EpisodeReport, EpisodeRow, format_episodes
from tests.benchmarks.memory import pss_bytes
from tests.benchmarks.reset import HARBOR, OURS, POOL, ResetReport, ResetRow, format_reset
from tests.benchmarks.size import KINDS, SizeReport, SizeRow, format_size
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.engines import require_engine


def row(way: str, at_once: int = 1, *, ready_ms: float = 50.0, close_ms: float = 10.0, **more: float) -> ResetRow:
    return ResetRow(way, at_once, 1, ready_ms, ready_ms, more.pop("all_ready_ms", ready_ms), close_ms, **more)


def test_ratios_compare_create_and_close_of_as_many_at_once() -> None:
    rows = [row(OURS), row(OURS, 8, ready_ms=90.0), row(HARBOR, ready_ms=500.0, close_ms=100.0)]
    rows += [row(HARBOR, 8, ready_ms=900.0, close_ms=100.0), row(HARBOR, 3), row(POOL, ready_ms=5.0)]
    report = ResetReport("docker", rows, None, {})
    assert report.ratios() == {f"{HARBOR}, 1 at once": 10.0, f"{HARBOR}, 8 at once": 10.0}


def test_the_table_has_every_row_and_what_could_not_be_run() -> None:
    rows = [row(OURS, ready_ms=59.0, sandbox_ms=26.0), row(POOL, ready_ms=10.5)]
    head, ours, pool, *rest = format_reset(ResetReport("local", rows, 2 << 20, {"raw": "not installed"})).splitlines()
    assert [head, ours, pool] == [
        "way                     at once  ready ms   p95  all ready  sandbox  terminal  close",
        "reset                         1      59.0  59.0       59.0     26.0             10.0",
        "reset from a warm pool        1      10.5  10.5       10.5                      10.0",
    ]
    assert rest == ["", "idle sandbox: 2.0 MiB", "not run: raw: not installed"]


def episode_row(per_minute: float, *, failed: int = 0) -> EpisodeRow:
    return EpisodeRow("way", 10, 2, failed, 1.0, per_minute, 0.1, 1.0, 2.0)


def test_a_failed_episode_makes_the_whole_benchmark_wrong() -> None:
    report = EpisodeReport("local", 2, [episode_row(1100.0), episode_row(20.0, failed=1)])
    assert not report.is_right
    assert "55.0 times Harbor's" in format_episodes(report)


def test_memory_is_counted_of_what_runs_below_this_process() -> None:
    import os
    import subprocess

    with subprocess.Popen(["sleep", "60"]) as process:
        below = descendants(os.getpid())
        alone = pss_bytes({process.pid})
        process.kill()
    assert process.pid in below
    assert os.getpid() not in below
    assert alone > 0
    assert pss_bytes({process.pid}) == 0, "the dead hold nothing"


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
def test_episodes_are_timed_by_their_phases() -> None:
    require_engine("local")
    done = run_benchmark("episode", "--env", "local", "--episodes", "2", "--at-once", "2", "--phases", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (ours,) = report["rows"]
    assert (ours["episodes"], ours["failed"]) == (2, 0)
    assert ours["child_cpu_ms"] > 20, "the sandboxes' own time counts, whoever started them"
    phases = {row["phase"]: row for row in report["phases"]}
    assert {name: row["times"] for name, row in phases.items()} == {"reset": 2, "step": 10, "verdict": 2, "close": 2}
    assert all(phases[name]["started"] >= 5 for name in ("reset", "verdict"))


@pytest.mark.local
@pytest.mark.criu
@pytest.mark.usefixtures("nothing_left")
def test_copies_are_timed_and_each_has_what_its_parent_had() -> None:
    require_engine("local")
    require_engine("criu")
    done = run_benchmark("fork", "--turns", "3", "--copies", "2", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert [(row["mode"], row["wrong"]) for row in report["rows"]] == [("replay", 0), ("exact", 0)]
    assert all(row["fork_all_ms"] > 0 for row in report["rows"])


@pytest.mark.local
@pytest.mark.criu
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("nothing_left")
def test_copies_that_are_made_and_closed_in_turn_leave_nothing() -> None:
    require_engine("local")
    require_engine("criu")
    done = run_benchmark("fork", "--turns", "2", "--cycles", "20", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["mode"], report["cycles"], report["wrong"], report["left"]) == ("exact", 20, 0, [])


@pytest.mark.docker
@pytest.mark.slow
def test_harbors_own_session_runs_the_same_script_on_docker() -> None:
    require_engine("docker")
    require_engine("local")
    done = run_benchmark("episode", "--episodes", "1", "--at-once", "1", "--harbor-episodes", "1", "--json")
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout)["rows"]
    assert (ours["failed"], theirs["failed"]) == (0, 0)
    assert theirs["median_sec"] > 5.0, "Terminus-2 sleeps its five durations of a second"


def size_row(kind: str, files: int, ms: float) -> SizeRow:
    return SizeRow(kind, files, 2_000.0, ms, ms, 0.0, 1.0, 1.0, 60.0)


def test_growth_is_a_power_of_the_files_of_the_part_that_grew() -> None:
    rows = [size_row("tests", 10, 5.0), size_row("tests", 100, 9.0), size_row("tests", 1000, 500.0)]
    report = SizeReport("local", [*rows, size_row("output", 10, 5.0)])
    powers = {"cold_ms": 0.0, "warm_ms": 1.0, "grading_ms": 1.0, "close_ms": 0.0, "stop_ms": 0.0}
    assert report.exponents() == {"tests": powers}
    assert "tests: cold +0.00, warm +1.00, grading +1.00, close +0.00, stop +0.00" in format_size(report)


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_task_grows_in_each_of_its_parts() -> None:
    require_engine("local")
    done = run_benchmark("size", "--files", "150", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["kind"], row["files"]) for row in rows] == [(kind, 150) for kind in KINDS]
    assert all(row["warm_ms"] > 0 and row["grading_ms"] > 0 for row in rows)
