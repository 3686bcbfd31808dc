"""Each page at three widths, light and dark: nothing is beyond the window's edge, or over its neighbour."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import pytest

from harbor_gym.evaluation import EpisodeResult, summarize
from harbor_gym.report import write_page
from harbor_gym.report.audit import write_audit_page
from harbor_gym.report.viewer import Viewer
from harbor_gym.tasks.receipts import Severity
from harbor_gym.types import EndReason
from tests.helpers.browser import Page, browser
from tests.helpers.layout import SCHEMES, WIDTHS, faults, set_window
from tests.helpers.paths import ROOT
from tests.integration.report.test_view import write_episode, write_run
from tests.unit.report.test_audit_page import finding, receipt

pytestmark = pytest.mark.browser

LONG = "a_word_without_a_space_" * 12
SITE = ROOT / "build/site"


def write_evaluation(folder: Path) -> Path:
    ends = {1: EndReason.COMPLETED, 2: EndReason.MAX_TURNS, 3: EndReason.INFRASTRUCTURE_ERROR}
    rewards = {1: 1.0, 2: 0.0, 3: None}
    results: list[EpisodeResult] = []
    for number, end in ends.items():
        error = f"SamplerError: {LONG}" if rewards[number] is None else None
        write_episode(folder, 0, number, reward=rewards[number], task=LONG, end_reason=end, error=error)
        results.append(EpisodeResult(LONG, number, rewards[number], end, 2, 101, 20, 2.0, 0.5, error))
    report = summarize(results, ks=(1, 2), settings={"model": f"org/{LONG}", "temperature": 1.0, "env": {}})
    (folder / "eval.json").write_text(json.dumps(report.as_object()), encoding="utf-8")
    return folder


def runs_of(folder: Path) -> list[Path]:
    one, other = write_run(folder / "one" / LONG[:200], [1.0, 0.0, 0.5, None]), write_run(folder / "other", [0.0, 1.0])
    write_episode(
        one, 1, 1, reward=1.0, task=LONG, error=LONG, system_prompt=LONG, verifier={"output": LONG, "files": {LONG: 2}}
    )
    return [one, other]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncGenerator[Page]:
    async with browser(tmp_path / "profile") as tab:
        yield tab


async def look(page: Page, url: str, ready: str, *, dark: Sequence[int] | None = WIDTHS) -> None:
    """Expect no fault in each window of a light page, and in windows of these widths of a dark one; None opens none."""
    # The choices of an earlier visit are forgotten.
    await page.call("Page.addScriptToEvaluateOnNewDocument", source="try { localStorage.clear() } catch {}")
    grounds: set[str] = set()
    schemes = [scheme for scheme in SCHEMES if scheme == "light" or dark is not None]
    for scheme in schemes:
        await set_window(page, WIDTHS[0], scheme)
        if scheme == "dark":
            await page.open("about:blank")  # else a page that changed its own address would not be loaded anew
        await page.open(url)
        await page.wait_for(ready)
        for width in WIDTHS if scheme == "light" else dark or ():
            await set_window(page, width, scheme)
            assert await faults(page) == [], (url, width, scheme)
        grounds.add(await page.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == len(schemes)


EPISODE = "document.querySelector('.detail h2') !== null"

FILES: dict[str, Callable[[Path], Path | list[Path]]] = {
    "a run": lambda folder: runs_of(folder)[0],
    "two runs": runs_of,
    "an evaluation": write_evaluation,
}


async def test_the_pages_of_runs_fit(page: Page, tmp_path: Path) -> None:
    for kind, write in FILES.items():
        shown = write(tmp_path / kind / "runs")
        folders = shown if isinstance(shown, list) else [shown]
        with Viewer(folders, port=0) as viewer:
            await look(page, viewer.url, EPISODE)
        await look(page, write_page(folders).path.as_uri(), EPISODE)


async def test_the_page_of_an_audit_fits_and_is_sorted_and_searched(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    receipts = [
        receipt(LONG, finding("leak/tests", text=LONG, file=LONG), source=LONG),
        receipt("b", finding("leak/tests"), finding("hygiene/unpinned", Severity.WARNING), source="two"),
        receipt("c", finding("leak/solution"), source="two"),
    ]
    write_audit_page(receipts, path)
    await look(page, path.as_uri(), "document.querySelector('th button') !== null")
    await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for width in WIDTHS:
        await set_window(page, width, "dark")
        assert await faults(page) == [], width
    first = "document.querySelector('.sources tbody tr').cells[0].textContent"
    for wanted in ("two", LONG):
        await page.run("document.querySelectorAll('.sources th button')[1].click()")
        assert await page.run(first) == wanted
    await page.run(
        "[...document.querySelectorAll('button.kind')].find((one) => one.textContent === 'leak/solution').click()"
    )
    assert await page.run("document.querySelector('[role=status]').textContent") == "1 of 3 tasks with findings"
    assert page.errors == []


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site")
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_each_page_of_the_documentation_fits(page: Page) -> None:
    pages = sorted(SITE.rglob("index.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md"))), "the site lacks a page: make docs"
    for path in pages:
        # A dark page of the theme has other colours, and the same layout.
        dark = WIDTHS if path.parent == SITE else None
        await look(page, path.as_uri(), "[...document.images].every(image => image.complete)", dark=dark)
    assert page.errors == []


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site")
def test_the_documentation_asks_no_other_server() -> None:
    asked = re.compile(r'<(?:img|script|link|iframe|source)\b[^>]*?(?:src|href)="?(?:https?:)?//[^>]*')
    pages = {path: path.read_text(encoding="utf-8") for path in SITE.rglob("*.html")}
    assert {str(path): found for path, text in pages.items() if (found := asked.findall(text))} == {}


async def test_what_does_not_fit_is_found(page: Page, tmp_path: Path) -> None:
    harm = {
        "<p style='width:900px'>wide</p>": "beyond: p. wide",
        "<p style='margin-bottom:-40px;height:50px'>a</p><p>b</p>": "over its neighbour: p. a | p. b",
        "<p style='overflow:hidden;white-space:nowrap;width:50px'>a long line</p>": "cut: p. a long line",
        "<p>under<span style='margin-left:-30px'>over</span>": "text over text: under | over",
        "<img src='absent.png'>": f"broken: {tmp_path.as_uri()}/absent.png",
    }
    await set_window(page, 400, "light")
    for number, (body, found) in enumerate(harm.items()):
        path = tmp_path / f"{number}.html"
        path.write_text(f"<!doctype html><title>{found}</title><body>{body}", encoding="utf-8")
        await page.open(path.as_uri())
        await page.wait_for(f"document.title === '{found}'")
        assert found in await faults(page)
