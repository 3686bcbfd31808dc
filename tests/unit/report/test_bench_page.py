"""The page on performance shows the report that lies beside it, and names the machine."""

import json
import re
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks.machine import describe_machine, load
from tests.helpers.docs_scripts import load_script
from tests.helpers.paths import ROOT

REPORT: dict[str, Any] = {
    "env": "local",
    "day": "2026-11-23",
    "machine": {
        "processor": "A processor",
        "cpus": 2,
        "memory_gib": 23.5,
        "system": "Linux, Debian 12",
        "kernel": "6.1",
        "python": "3.12.1",
        "harbor_gym": "0.1.0",
        "harbor": "0.24.0",
    },
    "load": {"before": 0.1, "after": 2.5},
    "step": {
        "rows": [
            {"row": "ls", "implementation": "persistent", "median_ms": 7.4},
            {"row": "ls", "implementation": "harbor", "median_ms": 110.2},
            {"row": "open vim", "implementation": "persistent", "median_ms": 53.0},
        ]
    },
    "reset": {"rows": [{"way": "reset", "at_once": 8, "ready_ms": 68.2, "all_ready_ms": 369.0, "close_ms": 55.1}]},
    "episode": {"rows": [{"at_once": 16, "per_minute": 442.4}]},
    "concurrency": {"terminals": 64, "steps": 640, "lost": 0, "lag_p99_ms": 6.24},
    "vector": {"num_envs": 32, "sleep_ratio": 1.55},
    "gateway": {"rows": [{"endpoint": "gateway", "median_ms": 4.2, "p99_ms": 7.1}]},
}


@pytest.fixture
def script() -> ModuleType:
    return load_script("bench_page")


def test_the_page_is_what_the_script_draws(script: ModuleType) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert script.draw(page, json.loads((ROOT / "docs" / "figures" / "bench.json").read_text())) == page


_FIGURE = re.compile(r"(\bls\b|first prompt)[^.|]* \d+ ms|^\| *(`?ls`?|.*first prompt) *\|.*\d", re.MULTILINE)


def test_how_long_an_ls_and_a_first_prompt_take_stands_on_one_page() -> None:
    """The comparison with Harbor's singularity is of another run, and stands on the page of that sandbox alone."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {page.name for page in pages if _FIGURE.search(page.read_text())}
    assert found == {"benchmarks.md", "apptainer.md"}


def test_a_report_becomes_tables_under_its_machine(script: ModuleType) -> None:
    page = script.draw(f"before {script.BEGIN} old <!-- end of figures --> after", {"local": REPORT})
    assert "old" not in page
    assert page.startswith("before ")
    assert page.endswith(" after")
    for line in (
        "A processor, 2 processors, 23.5 GiB; Linux, Debian 12, kernel 6.1; Python 3.12.1, harbor_gym 0.1.0, Harbor",
        "load 0.1 before and 2.5 after",
        "| a step, median ms | persistent | Harbor's `TmuxSession` |\n| --- | --- | --- |\n| ls | 7 | 110 |",
        "| open vim | 53 |  |",
        "| reset | 8 | 68 | 369 | 55 |",
        "16 at once | 442 a minute |",
        "| 64 terminals at once, 640 steps | 0 lost, event-loop lag p99 6.2 ms |",
        "| a call, gateway, over the sampler's own time | median 4.2 ms, p99 7.1 ms |",
    ):
        assert line in page
    with pytest.raises(SystemExit, match="figures"):
        script.draw("no marks", {})


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.cpus > 0
    assert machine.memory_gib > 0.1
    assert machine.kernel
    assert machine.harbor.startswith("0.")
    assert load() >= 0
