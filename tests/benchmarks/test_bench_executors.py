"""Groups in other processes: that the benchmark plays all, grades all, and leaves nothing."""

import json

import pytest

from harbor_gym.types import ExecutorKind
from tests.benchmarks.executors import bench_executors, format_executors
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.sandboxes.fake_episodes import FAKE


@pytest.mark.usefixtures("nothing_left")
def test_every_way_plays_the_same_groups() -> None:
    report = bench_executors(FAKE, groups=4, group_size=3, workers=2, kinds=(ExecutorKind.PROCESS,))
    assert [(row.way, row.episodes, row.ungraded) for row in report.rows] == [
        ("this process", 12, 0),
        ("process", 12, 0),
    ]
    assert report.is_right
    assert all(row.episode_ms > 0 and row.call_ms > 0 and row.ready_sec > 0 for row in report.rows)
    assert format_executors(report).count("\n") == 2


def test_the_command_prints_an_object() -> None:
    shown = run_benchmark(
        "executors", "--env", FAKE, "--groups", "1", "--group-size", "2", "--executor", "process", "--json"
    )
    assert [row["way"] for row in json.loads(shown.stdout)["rows"]] == ["this process", "process"]
