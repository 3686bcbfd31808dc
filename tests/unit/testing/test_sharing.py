"""How test processes share the tests."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.helpers.paths import ROOT
from tests.helpers.sharing import group_of

_TESTS = """\
import os, pathlib, pytest
@pytest.mark.parametrize("engine", ["local", "docker"])
@pytest.mark.parametrize("number", range(10))
def test_one(number, engine):
    with open({log!r}, "a") as file:
        file.write(f"{{pathlib.Path(__file__).name}} {{engine}} {{os.getpid()}}\\n")
"""


def test_a_group_is_a_file_on_an_engine() -> None:
    assert group_of("tests/test_x.py::test_one[docker-3]") == "tests/test_x.py docker"
    assert group_of("tests/test_x.py::test_docker[3]") == group_of("tests/test_x.py::test_two") == "tests/test_x.py "
    assert group_of("tests/unit/skyrl/test_one.py::t[docker]") == group_of("tests/unit/skyrl/test_two.py::t")
    adapter, training = "tests/integration/adapters/trl/test_one.py::t", "tests/integration/training/trl/test_two.py::t"
    assert group_of(adapter) == group_of(training)
    parts = {group_of(f"tests/integration/images/test_as_docker.py::t[{number}]") for number in range(40)}
    assert len(parts) == 4, "whose tests share nothing"
    assert group_of("tests/test_terminal_channel.py::test[docker]") == group_of("tests/test_terminal_channel.py::t")


def test_each_group_runs_in_one_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(_TESTS.format(log=str(log)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "3", "--no-loadscope-reorder", "-p", "tests.helpers.sharing"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    processes: dict[str, set[str]] = defaultdict(set)
    for line in log.read_text().splitlines():
        file, engine, process = line.split()
        processes[f"{file} {engine}"].add(process)
    assert len(processes) == 6
    assert all(len(group) == 1 for group in processes.values())
    assert len({process for group in processes.values() for process in group}) > 1
