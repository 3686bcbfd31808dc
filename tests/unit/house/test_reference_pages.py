"""The reference pages have every name of the code, and nothing else."""

import inspect
import re

import pytest

from harbor_gym import errors
from harbor_gym.cli.lazy import LAZY
from harbor_gym.types import EndReason
from tests.helpers.docs_scripts import load_script
from tests.helpers.paths import ROOT

PACKAGE = ROOT / "harbor_gym"
OF_TESTS = {"HARBOR_GYM_CHECK_SECRET"}
"""Names that ``check-sandbox`` sets itself, to see that no sandbox has them."""


def first_column(page: str, title: str) -> list[str]:
    """Return the words in backquotes that begin the rows of the table with a title."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = text.partition(f"| {title} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)


def test_each_variable_of_ours_is_on_the_page() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*") if path.suffix in (".py", ".bash")
    )
    named = set(re.findall(r"HARBOR_GYM_[A-Z_]*[A-Z]", sources)) - OF_TESTS
    assert set(first_column("environment.md", "ours")) == named


def test_each_error_and_each_end_of_an_episode_has_its_cause_and_remedy() -> None:
    classes = [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)]
    drawn = re.findall(r"\w+Error\b", (errors.__doc__ or "").split("\n\n")[1])
    assert sorted(drawn) == sorted(classes)
    assert first_column("guide/failures.md", "error") == drawn
    assert set(first_column("guide/failures.md", "end reason")) == set(EndReason)


def test_an_error_is_infrastructure_where_the_page_says_so() -> None:
    text = (ROOT / "docs/guide/failures.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\w+Error)` \| (yes|no) \|", text, re.MULTILINE))
    known = {name: "yes" if getattr(errors, name).is_infrastructure else "no" for name in said}
    assert said == known
    assert len(said) == len(first_column("guide/failures.md", "error")) - 1, "all but the base"


def test_the_page_of_commands_has_each_with_its_flags() -> None:
    page = load_script("commands_page").page()
    titles = re.findall(r"^## harbor-gym (.*)$", page, re.MULTILINE)
    assert {"demo", "sweep", "server install", *LAZY} <= set(titles)
    help_of_report = page.partition("## harbor-gym report\n")[2].partition("\n## ")[0]
    assert "--episodes <int" in help_of_report
    flags = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs/guide/failures.md").read_text(encoding="utf-8")))
    assert flags <= set(re.findall(r"--[a-z-]+", page))


@pytest.mark.parametrize(
    "text",
    ["flowchart TB\n a --> b", "flowchart LR\n a --> b\n b --> a", "flowchart LR\n a -- b", "sequenceDiagram\n note"],
)
def test_a_diagram_that_can_not_be_drawn_ends_the_build(text: str) -> None:
    with pytest.raises(ValueError, match=r"diagram|flowchart"):
        load_script("diagrams").draw(text)
