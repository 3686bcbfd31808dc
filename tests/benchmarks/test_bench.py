"""The benchmarks: their verdicts, counts and sums, and that they run. No figure is a verdict here."""

import json
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.errors import SandboxStartError, UsageError
from tests.benchmarks.report import percentile
from tests.benchmarks.reset import OURS, POOL
from tests.benchmarks.sandbox import ExecCounter, started_environment
from tests.benchmarks.scenarios import LIST, ROWS, SIX, Step, make_scenarios
from tests.benchmarks.steps import (
    HARBOR,
    PERSISTENT,
    PORTABLE,
    TRANSPORTS,
    Sample,
    StepReport,
    format_table,
    summarize,
)
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.tasks import write_task

ROW_KEYS = {"row", "implementation", "median_ms", "p95_ms", "correct", "of", "execs_per_step"}

# --- right answers ----------------------------------------------------------------------------------------------------

TILDES = "\n".join("~" * 15)

RIGHT: dict[str, list[str]] = {
    "ls": ["bench$ ls /srv/bench/3\nalpha-3.txt  beta-3.txt\nbench$"],
    "sleep 0.3": ["bench$ sleep 0.3; echo slept-$((3 + 1))\nslept-4\nbench$ "],
    "vim open": [f"[full-screen program]\n\n{TILDES}"],
    "vim insert": [f"hello-3\n{TILDES}"],
    "vim quit": ["bench$ vi /tmp/note-$$-3\nbench$"],
    "python start": ["[waiting for input]\nPython 3.11\n>>>"],
    "python eval": [">>> print(3 * 7 + 1000)\n1021\n>>>"],
    "10 000 lines": ["3-1\n3-2\n3-3\n[... 9000 lines omitted ...]\n3-9999\n3-10000\nbench$"],
    "C-c": ["[exit code 130]\n^C\nbench$"],
    "read -s": ["Password:"],
    "read -s reply": ["Password: /9/\nbench$"],
    "batch of two": ["bench$ sleep 0.4; X=3\nbench$ echo X=$((X + 1))\nX=4\nbench$"],
    SIX: [f"bench$ echo six-$((3 * 6 + {k}))\nsix-{18 + k}\nbench$" for k in range(6)],
}

WRONG: list[tuple[str, str]] = [
    ("ls", "bench$ ls /srv/bench/3\nalpha-3.txt  beta-3.txt"),
    ("ls", "bench$ ls /srv/bench/2\nalpha-2.txt  beta-2.txt\nbench$"),
    ("sleep 0.3", "bench$ sleep 0.3; echo slept-$((3 + 1))\nbench$"),
    ("sleep 0.3", "slept-3\nbench$"),
    ("vim open", "bench$ vi /tmp/note-$$-3"),
    ("vim insert", TILDES),
    ("vim quit", f"hello-3\n{TILDES}\nbench$"),
    ("python start", "bench$ python3"),
    ("python eval", ">>> print(3 * 7 + 1000)\n>>>"),
    ("10 000 lines", "3-9999\n3-10000\nbench$"),
    ("10 000 lines", "3-1\n3-2\n3-3\nbench$"),
    ("C-c", "bench$"),
    ("C-c", "^C"),
    ("read -s", 'bench$ read -rsp "Password: " P; echo "/${#P}/"'),
    ("read -s reply", "ssssecret\n/9/\nbench$"),
    ("read -s reply", "Password: /4/\nbench$"),
    ("batch of two", "bench$ sleep 0.4; X=3\necho X=$((X + 1))"),
    (SIX, "bench$"),
    *[(row, "") for row in RIGHT],
]


TIMELESS = {"vim open", "vim quit", "python start", "C-c", "read -s"}
"""Steps that look the same each time; the screen before them looks otherwise."""


def step_of(row: str, repetition: int = 3) -> Step:
    (step,) = (step for scenario in make_scenarios(repetition) for step in scenario if step.row == row)
    return step


def test_every_row_has_its_examples() -> None:
    assert set(RIGHT) == set(ROWS) == {row for row, _ in WRONG}


@pytest.mark.parametrize("row", ROWS)
def test_what_a_person_would_expect_is_right(row: str) -> None:
    assert step_of(row).is_right(RIGHT[row])


@pytest.mark.parametrize(("row", "text"), WRONG)
def test_anything_else_is_wrong(row: str, text: str) -> None:
    assert not step_of(row).is_right([text] * len(step_of(row).turns))


@pytest.mark.parametrize("row", [row for row in ROWS if row not in TIMELESS])
def test_the_screen_of_the_repetition_before_is_wrong(row: str) -> None:
    assert not step_of(row, 4).is_right(RIGHT[row])


def test_no_typed_line_looks_like_its_own_answer() -> None:
    for scenario in make_scenarios(3):
        for step in scenario:
            if step.row not in (None, "vim quit"):  # an editor echoes nothing
                echoes = ["".join(f"bench$ {command.keystrokes}" for command in turn) + "bench$" for turn in step.turns]
                assert not step.is_right(echoes), step.row


# --- how it is summed up ----------------------------------------------------------------------------------------------


def sample(row: str, implementation: str, repetition: int, seconds: float, **changes: Any) -> Sample:
    values: dict[str, Any] = {"turns": 1, "execs": 1, "observation": None, **changes}
    return Sample(row, implementation, repetition, seconds, **values)


def report_on(*samples: Sample, sandbox: str = "local", **changes: Any) -> StepReport:
    return summarize(samples, sandbox=sandbox, repeat=1, **{"fallbacks": {}, "unavailable": {}, **changes})


def test_a_row_holds_median_percentile_and_correctness() -> None:
    samples = [sample(LIST, PORTABLE, i, seconds / 1000) for i, seconds in enumerate([5, 1, 2, 3])]
    samples.append(sample(LIST, PORTABLE, 4, 0.1, execs=2, observation="nothing"))
    (row,) = report_on(*samples).as_object()["rows"]
    assert set(row) == ROW_KEYS
    assert (row["median_ms"], row["p95_ms"], row["correct"], row["of"], row["execs_per_step"]) == (
        3.0,
        100.0,
        4,
        5,
        1.2,
    )


def test_execs_are_counted_per_turn() -> None:
    (row,) = report_on(sample(SIX, PORTABLE, 0, 1.0, turns=6, execs=6)).rows
    assert row.execs_per_step == 1.0


def test_the_ratio_compares_what_was_measured_together() -> None:
    pairs = [(0.2, 0.1), (3.0, 1.0), (40.0, 10.0)]
    samples = [
        item
        for i, (theirs, ours) in enumerate(pairs)
        for item in (sample(LIST, HARBOR, i, theirs), sample(LIST, PORTABLE, i, ours))
    ]
    assert report_on(*samples).ratios[LIST] == {PORTABLE: 3.0}


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (50, 2), (75, 3), (95, 4), (100, 4)], ids=lambda value: str(value)
)
def test_a_percentile_is_one_of_the_values(percent: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == expected


def test_a_transport_that_fell_back_is_named() -> None:
    report = report_on(sample(LIST, PERSISTENT, 0, 0.001), fallbacks={PERSISTENT: 1})
    assert "persistent fell back in 1 turns" in format_table(report)


def test_only_our_own_mistakes_make_it_fail() -> None:
    theirs = sample(LIST, HARBOR, 0, 0.1, observation="theirs")
    ours = sample(LIST, PORTABLE, 0, 0.1, observation="ours")
    assert report_on(theirs).is_right
    assert not report_on(theirs, ours).is_right
    wrong = report_on(theirs, ours, ours).as_object()["summary"]["wrong"]
    assert [(item["implementation"], item["observation"]) for item in wrong] == [(HARBOR, "theirs"), (PORTABLE, "ours")]


def test_the_table_is_aligned() -> None:
    table = format_table(report_on(sample(LIST, PORTABLE, 0, 0.01), sample(LIST, HARBOR, 0, 0.1)))
    title, first, second, *_ = table.splitlines()
    assert title.split("  ")[0].strip() == "step"
    assert [line.index("1/1") + 3 for line in (first, second)] == [title.index("correct") + len("correct")] * 2
    assert first.endswith("10.0")
    assert "*" not in table


def test_the_table_shows_where_harbor_was_fast_and_wrong() -> None:
    samples = [sample(LIST, PORTABLE, 0, 0.2), sample(LIST, HARBOR, 0, 0.1, observation="nothing")]
    lines = format_table(report_on(*samples)).splitlines()
    assert lines[1].endswith("0.5*")
    assert lines[3].startswith("* Harbor's observation")


# --- for real ---------------------------------------------------------------------------------------------------------


def expect_right_steps(found: Any, env: str) -> None:
    """Expect each step once in each terminal of ours, right, and in Harbor's."""
    assert set(found) == {"rows", "summary"}
    assert all(set(row) == ROW_KEYS for row in found["rows"])
    summary = found["summary"]
    assert (summary["env"], summary["repeat"], summary["all_correct"]) == (env, 1, True)
    names = [name for name in TRANSPORTS if name not in summary["unavailable"]]
    assert PORTABLE in names
    assert [(row["row"], row["implementation"]) for row in found["rows"]] == [
        (row, name) for row in ROWS for name in [*names, HARBOR]
    ]
    ours = [row for row in found["rows"] if row["implementation"] != HARBOR]
    assert all(row["correct"] == row["of"] == 1 for row in ours)
    assert {row["execs_per_step"] for row in ours if row["implementation"] == PORTABLE} == {1.0}
    if not summary["fallbacks"].get(PERSISTENT):
        assert all(row["execs_per_step"] == 0 for row in ours if row["implementation"] == PERSISTENT)
    assert all(set(ratios) == set(names) for ratios in summary["ratio_to_harbor"].values())


@pytest.mark.local
@pytest.mark.slow
def test_a_listed_host_is_timed_beside_a_public_network(nothing_left: None) -> None:
    require_engine("local")
    done = run_benchmark("network", "--repeat", "1", "--json")
    assert done.returncode == 0, done
    ways = json.loads(done.stdout)["ways"]
    assert [way["way"] for way in ways] == ["public", "listed name", "listed address"]
    assert all(value > 0 for way in ways for name, value in way.items() if name != "way")


@pytest.mark.local
@pytest.mark.compose
@pytest.mark.slow
def test_services_are_timed_beside_one_container(nothing_left: None) -> None:
    require_engine("compose")
    done = run_benchmark("services", "--repeat", "1", "--no-docker", "--json")
    assert done.returncode == 0, done
    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == ["local, one container", "local, three services"]
    assert all(row["ready_ms"] > 0 and row["close_ms"] > 0 for row in rows)


@pytest.mark.local
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_step_is_lost_among_many_terminals(transport: str, nothing_left: None) -> None:
    require_engine("local")
    forced = ("--transport", transport)
    done = run_benchmark("concurrency", "--env", "local", "--terminals", "6", "--steps", "4", "--json", *forced)
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert (found["env"], found["terminals"], found["steps"], found["lost"]) == ("local", 6, 24, 0)
    assert found["transports"] == {transport: 24}
    assert 0 <= found["lag_p50_ms"] <= found["lag_p99_ms"]
    assert 0 < found["step_p50_ms"] <= found["step_p99_ms"]


@pytest.mark.local
async def test_a_started_environment_runs_a_given_task_and_is_gone_afterwards(
    task_dir: Path, nothing_left: None
) -> None:
    require_engine("local")
    async with started_environment("local", task_dir) as environment:
        counter = ExecCounter(environment)
        assert ((await environment.exec("pwd")).stdout or "").strip() == "/srv"
        await environment.exec("true")
        assert counter.count == 2


@pytest.mark.local
async def test_a_sandbox_that_cannot_start_is_our_error(tmp_path: Path, nothing_left: None) -> None:
    require_engine("local")
    task = write_task(tmp_path / "task")
    (task / "tests" / "test.sh").unlink()
    with pytest.raises(SandboxStartError, match=r"'local' did not start for a benchmark: .*test\.sh"):
        async with started_environment("local", task):
            pass


async def test_an_unknown_sandbox_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="did you mean docker"):
        async with started_environment("dockr"):
            pass


def test_a_wrong_observation_fails_the_command_whose_report_is_shown_all_the_same() -> None:
    done = run_benchmark("vector", "--env", FAKE, "--num-envs", "2", "--repeat", "1")  # a fake has no files to list
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [f"env           {FAKE}", "num_envs      2"]
    assert done.stdout.splitlines()[-1] == "wrong         6"


def test_misuse_is_one_line_and_exit_code_2() -> None:
    done = run_benchmark("step", "--env", "dockr")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "did you mean docker" in done.stderr


@pytest.mark.local
@pytest.mark.slow
def test_everything_is_one_report_that_describes_its_machine(nothing_left: None) -> None:
    require_engine("local")
    done = run_benchmark("all", "--env", "local", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    names = ("step", "reset", "episode", "concurrency", "vector", "gateway")
    assert tuple(line for line in done.stderr.splitlines() if line in names) == names
    report = json.loads(done.stdout)
    assert set(report) == {"format", "env", "day", "machine", "load", *names}
    assert report["machine"]["cpus"] >= 1
    assert report["machine"]["processor"]
    expect_right_steps(report["step"], "local")
    resets = report["reset"]["rows"]
    assert [(row["way"], row["at_once"]) for row in resets] == [(OURS, 1), (POOL, 1), ("raw bwrap", 1), (OURS, 8)]
    assert all(row["ready_ms"] > 0 for row in resets)
    assert report["reset"]["idle_bytes"] > 1 << 20
    assert (report["concurrency"]["lost"], sum(report["concurrency"]["transports"].values())) == (
        0,
        report["concurrency"]["steps"],
    )
    assert {row["failed"] for row in report["episode"]["rows"]} == {0}
