"""The page on scale shows the reports that lie beside it."""

import json
from types import ModuleType

import pytest

from tests.helpers.docs_scripts import load_script
from tests.helpers.paths import ROOT

SCALE = {
    "env": "local",
    "cpus": 2,
    "sandboxes": 10,
    "live_sec": 3.0,
    "first_prompt_p99_sec": 1.234,
    "answer_p99_ms": 12.0,
    "lag_p99_ms": 4.0,
    "host_mib": 0.2,
    "below_mib": 4.7,
    "close_sec": 1.0,
    "lost": 0,
}


@pytest.fixture
def script() -> ModuleType:
    return load_script("scale_page")


def test_the_page_is_what_the_script_draws(script: ModuleType) -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert script.draw(page, json.loads((ROOT / "docs" / "figures" / "scale.json").read_text())) == page


def test_a_report_becomes_a_row(script: ModuleType) -> None:
    page = script.draw(f"before {script.BEGIN} old <!-- end of figures --> after", {script.key_of(SCALE): SCALE})
    assert "old" not in page
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "| local | 10 | 2 | 3.0 | 1.23 | 12 | 4.0 | 0.20 | 4.70 | 1.0 | 0 |" in page
    with pytest.raises(SystemExit, match="figures"):
        script.draw("no marks", {})
