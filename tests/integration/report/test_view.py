"""The page of a run in a real browser, by keyboard alone, live and as a file."""

import asyncio
import html
import itertools
import json
import os
import re
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from harbor_gym._runtime.files import replace_text
from harbor_gym.episode.diagnostics import VerifierReport, read_diagnostics, read_verifier
from harbor_gym.errors import UsageError
from harbor_gym.report import episodes, write_page
from harbor_gym.report.animation import write_animation
from harbor_gym.report.metrics import distinct_names
from harbor_gym.report.page import run_curves
from harbor_gym.report.viewer import Viewer
from harbor_gym.report.watch import newest
from tests.helpers.browser import Page, browser
from tests.helpers.large_run import write_large_run

SECRET = "hunter2"
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">"


def write_episode(run: Path, batch: int, number: int, *, reward: float | None, **more: Any) -> None:
    path = run / "transcripts" / "train" / f"batch_{batch:04d}" / "group_1" / f"episode_{number:03d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    turns = [
        {
            "observation": f"$ screen {turn} {HOSTILE}",
            "action": json.dumps({"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\n", "duration": 1}]}),
            "reward": reward or 0.0,
            "prompt_tokens": 100 + turn,
            "sampled_tokens": 10 * number,
            "logprobs": [-0.5, -1.5, None],
            "thinking_sec": 0.25,
            "metrics": {"time/step_sec": 0.05},
            "exit_code": 0,
        }
        for turn in range(2)
    ]
    document: dict[str, Any] = {
        "format": 2,
        "task": "devops_task",
        "end_reason": "completed" if reward else "max_turns",
        "reward": reward,
        "rewards": {"reward": reward or 0.0},
        "verifier": {"output": f"FAIL: number {number} {HOSTILE}", "files": {"reward.txt": 2}},
        "system_prompt": "You are an agent.",
        "start": {"sandbox": "local", "metrics": {"time/sandbox_start_sec": 0.1}},
        "seconds": float(number),
        "turns": turns,
        "final_observation": "the end",
        **more,
    }
    path.write_text(json.dumps(document))
    events = [[0.0, "m", "start"], [0.0, "o", "first"], [0.5, "m", "turn 1"], [0.5, "o", "\r\nsecond"]]
    events += [[1.0, "m", "2:"], [1.0, "o", "\r\nthird"]]
    lines = [json.dumps({"version": 2, "width": 40, "height": 5}), *map(json.dumps, events)]
    path.with_suffix(".cast").write_text("\n".join(lines) + "\n")


def write_run(folder: Path, rewards: list[float | None]) -> Path:
    for number, reward in enumerate(rewards, start=1):
        write_episode(folder, 1 + (number > 2), number, reward=reward)
    records = [{"step": step, "env/all/reward/total": 0.5, "env/all/turns_per_episode": 2.0} for step in range(2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [1.0, 0.0, 0.5, None])


@pytest.fixture
async def page(tmp_path: Path) -> AsyncGenerator[Page]:
    async with browser(tmp_path / "profile") as tab:
        yield tab
        assert tab.errors == []


ROWS = "[...document.querySelectorAll('.list tbody tr')].map(row => row.querySelector('.episode').textContent)"
CHOSEN = "document.querySelector('tr.chosen .episode')?.textContent"
TITLE = "document.querySelector('.detail h2')?.textContent"


async def opened(page: Page, url: str, rows: int) -> None:
    await page.open(url)
    await page.wait_for(f"{ROWS}.length === {rows} && {TITLE}")


CURVES = "[...document.querySelector('.curves').children].map(curve => curve.getBoundingClientRect().top)"


@pytest.mark.browser
async def test_a_wide_window_has_both_curves_side_by_side(page: Page, run_dir: Path) -> None:
    with Viewer([run_dir], port=0) as viewer:
        for url in (viewer.url, write_page(run_dir).path.as_uri()):
            await opened(page, url, 4)
            tops = await page.run(CURVES)
            assert len(tops) == 2, url
            assert tops[0] == tops[1], url


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["live", "file"])
async def test_a_run_is_read_with_the_keyboard_alone(page: Page, run_dir: Path, kind: str) -> None:
    with Viewer([run_dir], port=0) as viewer:
        url = viewer.url if kind == "live" else write_page(run_dir).path.as_uri()
        await opened(page, url, 4)
        assert await page.run(CHOSEN) == "1"
        await page.press("j", "ArrowDown")
        await page.wait_for(f"{TITLE}.includes('episode 3 ')")
        await page.press("k")
        await page.wait_for(f"{TITLE}.includes('episode 2 ')")
        text: str = await page.run("document.querySelector('.detail').innerText")
        for word in ("max_turns", "FAIL: number 2", "reward.txt", "mean -1.000, least -1.50", "system prompt", "local"):
            assert word in text, word
        assert HOSTILE in text, "what a terminal showed is text"
        assert await page.run("document.title") == ("run · harbor-gym"), "and no markup"
        # Search, by / and back by Escape.
        await page.press("/")
        await page.press(*"number 3")
        await page.wait_for(f"{ROWS}.join() === '3'")
        await page.press("Escape")
        await page.press("j")
        await page.wait_for(f"{TITLE}.includes('episode 3 ')")
        # The player: play is a key, and turns are stepped through.
        await page.press("p")
        await page.wait_for("document.querySelector('.player').textContent === 'first\\nsecond'")
        await page.press("n")
        await page.wait_for("document.querySelector('.player').textContent.includes('third')")
        assert (await page.run("document.querySelector('.controls span').textContent")).endswith("turn 2")
        assert await page.run("document.activeElement.className") == "turn-number"
        await page.press("?")
        await page.wait_for("document.getElementById('help').open")
        await page.press("Escape")
        await page.wait_for("!document.getElementById('help').open")
        before = await page.run("getComputedStyle(document.body).backgroundColor")
        await page.press("d")
        assert await page.run("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.browser
async def test_filters_order_links_and_speeds(page: Page, run_dir: Path) -> None:
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 4)
        choose = (
            "(label, value) => {{const box = document.querySelector(`[aria-label='${{label}}']`); box.value = value; "
        )
        choose += "box.dispatchEvent(new Event('change')); return {rows}.join()}}"
        pick = choose.format(rows=ROWS)
        assert await page.run(f"({pick})('reward', '+')") == "1,3"
        assert await page.run(f"({pick})('reward', '-')") == "4"
        await page.run(f"({pick})('reward', '')")
        assert await page.run(f"({pick})('end reason', 'max_turns')") == "2,4"
        await page.run(f"({pick})('end reason', '')")
        assert await page.run(f"({pick})('batch', '2')") == "3,4"
        await page.run(f"({pick})('batch', '')")
        assert await page.run(f"({pick})('task', 'devops_task')") == "1,2,3,4"
        click = "document.querySelector('[title=\"sort by reward\"]').click()"
        assert await page.run(f"{click}, {ROWS}.join()") == "1,3,2,4"
        assert await page.run(f"{click}, {ROWS}.join()") == "4,2,3,1"
        assert await page.run("document.querySelector('th[aria-sort=ascending]').textContent") == "reward"
        assert float(await page.run("[...document.querySelector('[aria-label=speed]').options].at(-1).value")) > 1
        links = await page.run("[...document.querySelectorAll('.links a')].map(a => a.href)")
        kinds = [await asyncio.to_thread(kind_of, link) for link in links]
        assert kinds == ["application/json", "application/x-asciicast"]


@pytest.mark.browser
async def test_an_episode_shows_the_command_that_plays_on(page: Page, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "it's a run", [1.0])
    settings = {"action_format": "terminus-json-plain"}
    write_episode(run_dir, 1, 2, reward=0.0, settings=settings)
    write_episode(run_dir, 1, 3, reward=0.0, settings=settings | {"action_format": "bash-tool"})
    command = "document.querySelector('.detail p code')?.textContent"
    with Viewer([run_dir], port=0) as viewer:
        for url in (viewer.url, write_page(run_dir).path.as_uri()):
            await opened(page, url, 3)
            assert await page.run(command) is None, "no settings, nothing to go on from"
            await page.press("j")
            await page.wait_for(f"{command}?.endsWith(' --turn 1')")
            words = shlex.split(await page.run(command))
            name = "train/batch_0001/group_1/episode_002"
            assert words == ["harbor-gym", "play", "--from", f"{run_dir}/{name}", "--turn", "1"]
            await page.press("n")
            await page.wait_for(f"{command}.endsWith(' --turn 0')")
            await page.press("j")
            await page.wait_for(f"{TITLE}.includes('episode 3')")
            assert await page.run(command) is None, "play has no such format"


@pytest.mark.browser
async def test_what_was_stopped_before_grading_is_named_a_reward_of_0_as_a_warning(page: Page, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [1.0])
    for number, reward in ((2, 0.0), (3, 1.0)):
        write_episode(run_dir, 1, number, reward=reward, stopped_processes=["nginx", HOSTILE])
    line = "[...document.querySelectorAll('.detail > p')].find((one) => one.textContent.startsWith('stopped before'))"
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 3)
        assert await page.run(f"{line} === undefined")
        for kind in ("error", "quiet"):
            await page.press("j")
            await page.wait_for(f"{line}?.className === '{kind}'")
            assert await page.run(f"{line}.textContent") == f"stopped before grading: nginx, {HOSTILE}"


@pytest.mark.browser
async def test_an_episode_shows_what_each_service_printed(page: Page, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [1.0])
    write_episode(run_dir, 1, 2, reward=1.0, services={"web": f"GET / {HOSTILE}", "db": ""})
    shown = "[...document.querySelectorAll('.detail > details')].map((one) => one.textContent)"
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 2)
        assert await page.run(shown) == []
        await page.press("j")
        expected = [f"service webGET / {HOSTILE}", "service dbIt printed nothing."]
        await page.wait_for(f"{shown}.length === 2")
        assert await page.run(shown) == expected


@pytest.mark.browser
async def test_new_episodes_appear_and_what_was_chosen_stays(page: Page, run_dir: Path) -> None:
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 4)
        await page.press("j")
        write_episode(run_dir, 3, 9, reward=1.0)
        await page.wait_for(f"{ROWS}.length === 5")
        assert await page.run(CHOSEN) == "2"
        address = await page.run("location.hash")
        await page.open(f"{viewer.url}{address}")
        await page.wait_for(f"{TITLE}?.includes('episode 2 ')")


@pytest.mark.browser
async def test_two_runs_have_one_chart_a_quantity_with_their_names(page: Page, run_dir: Path, tmp_path: Path) -> None:
    runs = [run_dir, write_run(tmp_path / "elsewhere" / "run", [0.0, 1.0])]
    drawn = run_curves(runs).main
    assert [drawing.count("<polyline") for drawing in drawn] == [2, 2]
    assert all(f">{name}<" in drawing for name in distinct_names(runs) for drawing in drawn)
    with Viewer(runs, port=0) as viewer:
        for url in (viewer.url, write_page(runs).path.as_uri()):
            await opened(page, url, 6)
            sizes = await page.run(
                "[...document.querySelector('.curves').children].map(node => node.getBoundingClientRect().width)"
            )
            assert len(sizes) == 2, url
            assert sizes[0] == sizes[1], url


@pytest.mark.browser
async def test_two_runs_stand_side_by_side(page: Page, run_dir: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", [0.0, 1.0])
    with Viewer([run_dir, other], port=0) as viewer:
        await opened(page, viewer.url, 6)
        number = "node => node.textContent.match(/episode (\\d+)/)[1]"
        titles = f"[...document.querySelectorAll('.detail h2')].map({number}).join()"
        await page.wait_for(f"{titles} === '1,1'")
        boxes = await page.run("[...document.querySelectorAll('.pane')].map(node => node.getBoundingClientRect().left)")
        assert boxes[0] < boxes[1]
        await page.press("j")
        await page.wait_for(f"{titles} === '2,1'")
        await page.press("Tab", "j")
        await page.wait_for(f"{titles} === '2,2'")
        if folder := os.environ.get("HARBOR_GYM_SCREENSHOTS"):
            await page.screenshot(Path(folder) / "two_runs.png")


def write_evaluation(folder: Path) -> Path:
    write_episode(folder, 1, 1, reward=1.0)
    result = {"settings": {"model": "some-model"}, "overall": {"episodes": 4, "pass_at": {"1": PASSED}}}
    (folder / "eval.json").write_text(json.dumps(result))
    return folder


PASSED = {"value": 0.5, "low": 0.15, "high": 0.85}
LISTED = (
    "[...document.querySelectorAll('.runs tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
)


@pytest.mark.browser
async def test_a_folder_of_runs_is_listed_and_each_is_opened_from_there(page: Page, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    older, newer = write_run(runs / "sweep" / "lr_1", [1.0, 0.0]), write_evaluation(runs / "eval-<b>x")
    (runs / "notes").mkdir()
    for path in older.iterdir():
        os.utime(path, (1, 1))
    with Viewer([runs], port=0) as viewer:
        assert viewer.catalog is not None
        await page.open(viewer.url)
        rows: list[list[str]] = await page.run(LISTED)
        assert [row[1:7] for row in rows] == [
            [newer.name, "evaluation", "some-model", "4 episodes", "pass@1", "0.50 [0.15, 0.85]"],
            ["sweep/lr_1", "training", "", "2 batches", "reward", "0.50"],
        ]
        bars = await page.run(
            "[...document.querySelectorAll('.bar .part')].map(bar => bar.getBoundingClientRect().width)"
        )
        assert bars == [50, 50]
        if folder := os.environ.get("HARBOR_GYM_SCREENSHOTS"):
            await page.screenshot(Path(folder) / "runs.png")
        # Two that are chosen stay chosen when another run appears, and are opened side by side.
        await page.run("document.querySelectorAll('.runs input').forEach(box => box.click())")
        write_run(runs / "latest", [0.5, 0.5, 0.0])
        await page.wait_for(f"{LISTED}.length === 3")
        assert (await page.run(LISTED))[0][1] == "latest"
        assert await page.run("[...document.querySelectorAll('.runs input')].map(box => box.checked)") == [
            False,
            True,
            True,
        ]
        await page.run("document.getElementById('compare').click()")
        await page.wait_for("document.querySelectorAll('.pane').length === 2")
        await page.wait_for(f"{ROWS}.length === 3")
        await page.open(viewer.url)
        await page.run("[...document.querySelectorAll('.runs a')].find(link => link.innerText === 'latest').click()")
        await page.wait_for("document.title.startsWith('latest')")
        await page.wait_for(f"{ROWS}.length === 3 && {TITLE}")


def test_the_list_gives_away_its_runs_and_nothing_else(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "one", [1.0])
    other = write_run(tmp_path / "elsewhere", [1.0])
    (run.parent / "linked").symlink_to(other)
    with Viewer([run.parent], port=0) as viewer:
        for path in ("", "view/one/", "view/one/api/runs/0/episodes"):
            assert get(viewer.url + path) == 200, path
        for path in (
            *("view/", "view/two/", "view/..%2felsewhere/", "view/linked/", "view/one%7Ctwo%7C/api/runs/1/episodes"),
            *(
                "api/runs/0/episodes",
                "files/0/train/batch_0001/group_1/episode_001.json",
                "view/one/files/0/metrics.jsonl",
            ),
        ):
            assert get(viewer.url + path) == 404, path
        assert get(viewer.url, Host="evil.example:80") == 403


def test_a_folder_that_becomes_a_run_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with Viewer([folder], port=0) as viewer:
        assert get(f"{viewer.url}view/run/") == 404
        write_run(folder, [1.0])
        assert get(f"{viewer.url}view/run/") == 200


def kind_of(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.headers["Content-Type"]


def get(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_server_gives_away_its_runs_and_nothing_else(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"turns": []}')
    with Viewer([run_dir], port=0) as viewer:
        assert get(viewer.url) == 200
        listed = f"{viewer.url}api/runs/0/episodes"
        assert get(listed) == 200
        assert get(f"{viewer.url}files/0/train/batch_0001/group_1/episode_001.json") == 200
        for path in (
            "files/0/..%2f..%2fsecret.json",
            "files/0/../../secret.json",
            "files/0/%2e%2e/%2e%2e/secret.json",
            "files/0/metrics.jsonl",
            "files/1/train/batch_0001/group_1/episode_001.json",
            "api/runs/0/episode?name=../../secret",
            "api/runs/²/episodes",
            "api/runs/0/curve",
            "etc/passwd",
        ):
            assert get(viewer.url + urllib.parse.quote(path, safe="/%?=.")) == 404, path
        assert get(listed, Host="evil.example:80") == 403, "a name made to resolve to loopback reads nothing"
        with pytest.raises(UsageError, match="can't be used"):
            Viewer([run_dir], port=int(viewer.url.rsplit(":", 1)[1].strip("/")))
    with pytest.raises(UsageError, match="is not a directory"):
        Viewer([tmp_path / "absent"], port=0)


@pytest.fixture
def planted(run_dir: Path, tmp_path: Path) -> Path:
    """A run's folder with files that a sandbox could put there: links to this machine's files, and pipes."""
    secret = tmp_path / "secret"
    secret.mkdir()
    write_episode(secret, 1, 1, reward=1.0, system_prompt=SECRET)
    (outside,) = secret.rglob("*.json")
    outside.with_suffix(".cast").write_text(f'{{"version": 2, "width": 9, "height": 2}}\n[0.1, "o", "{SECRET}"]\n')
    group = run_dir / "transcripts/train/batch_0001/group_1"
    for suffix in (".json", ".cast"):
        os.mkfifo(group / f"episode_007{suffix}")
        (group / f"episode_008{suffix}").symlink_to(outside.with_suffix(suffix))
    (group / "episode_001.cast").unlink()
    (group / "episode_001.cast").symlink_to(outside.with_suffix(".cast"))
    (group / "episode_002.cast").unlink()
    os.mkfifo(group / "episode_002.cast")
    (run_dir / "transcripts/train/batch_0009").symlink_to(outside.parent.parent)
    (run_dir / "transcripts/absent.json").symlink_to("nothing")
    return run_dir


def test_no_reader_of_a_run_follows_a_link_or_waits_for_a_pipe(planted: Path, tmp_path: Path) -> None:
    group = "train/batch_0001/group_1"
    with Viewer([planted], port=0) as viewer:
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes") as answer:
            listed = json.load(answer)["episodes"]
        assert [episode["episode"] for episode in listed] == [1, 2, 3, 4]
        for number, suffix in itertools.product((1, 2, 7, 8), (".json", ".cast")):
            expected = 200 if number < 3 and suffix == ".json" else 404
            assert get(f"{viewer.url}files/0/{group}/episode_00{number}{suffix}") == expected, (number, suffix)
        assert get(f"{viewer.url}files/0/train/batch_0009/group_1/episode_001.json") == 404
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episode?name={group}/episode_001") as answer:
            assert SECRET not in answer.read().decode()
    page = write_page(planted)
    assert page.shown == 4
    assert SECRET not in page.path.read_text()
    assert len(episodes(planted)) == 4
    shown = {newest(planted, pane, 10) for pane in range(10)} - {None}
    assert {path.name for path in shown if path} == {"episode_003.cast", "episode_004.cast"}
    with pytest.raises(UsageError, match="no regular file"):
        write_animation(planted / "transcripts" / group / "episode_007.cast", tmp_path / "out.svg")


def test_what_the_sandbox_put_into_its_trials_folder_is_not_read_for_an_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    trial = tmp_path / "trial"
    (trial / "verifier").mkdir(parents=True)
    os.mkfifo(trial / "verifier/test-stdout.txt")
    (trial / "trial.log").symlink_to(tmp_path / "secret")
    assert read_diagnostics(trial) == {}
    assert read_verifier(trial, None) == VerifierReport("", {})
    (trial / "verifier/test-stdout.txt").unlink()
    (trial / "verifier/test-stdout.txt").symlink_to(tmp_path / "secret")
    assert read_verifier(trial, None) == VerifierReport("", {})


def test_what_is_written_into_a_sandboxs_folder_goes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    (tmp_path / f".trajectory.{os.getpid()}.partial.json").symlink_to(tmp_path / "kept")
    replace_text(tmp_path / "trajectory.json", "new")
    assert ((tmp_path / "kept").read_text(), (tmp_path / "trajectory.json").read_text()) == ("mine", "new")


def test_a_large_run_is_listed_from_what_is_known(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Viewer([run_dir], port=0) as viewer:
        get(f"{viewer.url}api/runs/0/episodes")
        monkeypatch.setattr("harbor_gym.report.viewer.read_episode", lambda *_, **__: pytest.fail("read again"))  # pyright: ignore[reportUnknownLambdaType]
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes") as answer:
            assert len(json.load(answer)["episodes"]) == 4


def table_of(page: str, name: str) -> list[list[str]]:
    """Return the rows of a table of the page, as text."""
    body = page.partition(f'<table class="{name}">')[2].partition("</table>")[0].partition("<tbody>")[2]
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", body)
    ]


def test_a_page_has_a_row_a_task_and_its_failures_by_the_verifiers_last_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = {1: "=== 1 failed in 0.52s ===", 2: "=== 1 failed in 11.4s ===\n\n", 3: "no such file", 4: ""}
    for number, line in said.items():
        verifier = {"output": f"collected\n{line}", "files": {}}
        write_episode(run, 1, number, reward=0.0, task="hard", verifier=verifier, end_reason="completed")
    write_episode(run, 1, 5, reward=1.0, task="easy")
    write_episode(run, 2, 5, reward=0.5, task="easy", end_reason="max_turns")
    write_episode(run, 2, 6, reward=None, task="easy", error="SandboxError: gone")
    page = write_page(run).path.read_text()
    assert [[row[0], row[1], row[2], row[7]] for row in table_of(page, "tasks")] == [
        ["hard", "0 of 4", "0.00", ""],
        ["easy", "1 of 2", "0.75", "1"],
    ]
    assert [row[:4] for row in table_of(page, "failures")] == [
        ["not solved", "completed", "1 failed in … s", "2"],
        ["not solved", "completed", "no such file", "1"],
        ["not solved", "completed", "collected", "1"],
        ["not solved", "max_turns", f"FAIL: number 5 {HOSTILE}", "1"],
        ["lost", "SandboxError: gone", "", "1"],
    ]


def test_two_runs_are_compared_by_task_the_greatest_difference_first(tmp_path: Path) -> None:
    rewards = {"one": {"a": 1.0, "b": 0.0, "c": 0.5}, "two": {"a": 1.0, "b": 1.0, "d": 0.0}}
    for name, tasks in rewards.items():
        for number, (task, reward) in enumerate(tasks.items(), 1):
            write_episode(tmp_path / name, 1, number, reward=reward, task=task)
    rows = table_of(write_page([tmp_path / name for name in rewards]).path.read_text(), "tasks")
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("b", "0 of 1", "+1.00"),
        ("a", "1 of 1", "+0.00"),
        ("c", "0 of 1", "-"),
        ("d", "not played", "-"),
    ]


def test_each_metric_has_a_chart_with_every_run_that_has_it(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [1.0]) for name in ("one", "two", "three")]
    for number, run in enumerate(runs):
        more = {"optim/kl": 0.1 * number, "time/total": 3.0} if number else {"optim/kl": 0.5, "note": "text"}
        records = [{"step": step, "env/all/reward/total": 0.5, **more} for step in range(3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    curves = run_curves(runs)
    assert [(re.findall('aria-label="(.*?)"', drawing), drawing.count("<polyline")) for drawing in curves.further] == [
        (["optim/kl"], 3),
        (["time/total"], 2),
    ]
    assert 'class="line run1"' in curves.further[1], "a run has the same colour in each chart"
    assert 'class="line run0"' not in curves.further[1]
    (runs[0] / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "reward": 9.0 * (n == 777)}) + "\n" for n in range(10_000))
    )
    (drawing,) = run_curves(runs[:1]).main
    assert len(drawing) < 10_000, "a long run's chart is no larger than its picture needs"
    assert len(re.findall(r">10<", drawing)) == 1, "and its peak is in it"


def test_the_page_of_a_training_run_says_what_it_was_made_with(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0])
    settings = {"config": {"seed": 7, "env": {"sandbox": "docker"}}, "versions": {"harbor-gym": "0.1.0"}}
    (run / "run.json").write_text(json.dumps(settings))
    tasks = {"tasks": [{"name": "t", "digest": "0123456789abcdef", "commit": "fedcba9876543210"}], "test_tasks": ["t"]}
    (run / "tasks.json").write_text(json.dumps(tasks))
    shown = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", write_page(run).path.read_text()))
    assert {name: shown[name] for name in ("seed", "sandbox", "made with", "task files", "test tasks")} == {
        "seed": "7",
        "sandbox": "docker",
        "made with": "harbor-gym 0.1.0",
        "task files": "t 0123456789ab (git fedcba987654)",
        "test tasks": "t",
    }


@pytest.mark.browser
async def test_an_entry_is_a_link_and_a_link_chooses_the_entry(page: Page, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [1.0, 0.0, 0.0]) for name in ("one", "two")]
    with Viewer(runs, port=0) as viewer:
        for url in (viewer.url, write_page(runs).path.as_uri()):
            await opened(page, url, 6)
            second = await page.run("document.querySelectorAll('.pane')[1].querySelectorAll('.episode a')[2].href")
            await page.open("about:blank")
            await page.open(second)
            titles = "[...document.querySelectorAll('.detail h2')].map(node => node.textContent.slice(0, 9)).join()"
            await page.wait_for(f"{titles} === 'episode 1,episode 3'")
            # Those of the tables do so in the page that is open.
            await page.run("document.querySelectorAll('.tasks tbody a')[0].click()")
            await page.wait_for(f"{titles} === 'episode 2,episode 3'")


@pytest.mark.browser
async def test_the_queueing_of_an_answer_stands_apart_from_the_thinking(page: Page, run_dir: Path) -> None:
    path = run_dir / "transcripts/train/batch_0001/group_1/episode_001.json"
    document = json.loads(path.read_text())
    document["turns"][1] |= {"thinking_sec": 2.5, "queued_sec": 2.0}
    path.write_text(json.dumps(document))
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 4)
        text: str = await page.run("document.querySelector('.detail').innerText")
        assert "queueing and thinking 0.25 s" in text
        assert "queueing 2.00 s" in text
        assert "thinking 0.50 s" in text


@pytest.mark.browser
async def test_tables_and_charts_follow_a_run_that_is_open(page: Page, run_dir: Path) -> None:
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 4)
        await page.run("document.querySelector('details:has(#failures0)').open = false")
        write_episode(run_dir, 3, 9, reward=1.0, task="another")
        await page.wait_for("document.querySelectorAll('.tasks tbody tr').length === 2")
        assert not await page.run("document.querySelector('details:has(#failures0)').open"), "what was folded stays so"


LARGE = 1_500


@pytest.fixture(scope="session")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_run(tmp_path_factory.mktemp("large") / "run", episodes=LARGE)


def test_a_large_runs_episodes_are_given_in_parts_each_once(large_run: Path) -> None:
    with Viewer([large_run], port=0) as viewer:
        since, names, parts = "", list[str](), 0
        while True:
            with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes?since={since}") as answer:
                part = json.load(answer)
            names += [episode["name"] for episode in part["episodes"]]
            since, parts = part["revision"], parts + 1
            if not part["unread"]:
                break
        assert (len(names), len(set(names))) == (LARGE, LARGE)
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes?since={since}") as answer:
            assert json.load(answer)["episodes"] == []


def test_a_search_is_answered_in_parts_each_episode_once_and_again_when_it_changes(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Viewer([run_dir], port=0) as viewer:
        get(f"{viewer.url}api/runs/0/episodes")
        monkeypatch.setattr("harbor_gym.report.viewer._READ_SEC", 0)
        name, searched, after, lefts = (
            "train/batch_000{}/group_1/episode_00{}".format,
            dict[str, bool](),
            0,
            list[int](),
        )

        def ask() -> None:
            nonlocal after
            address = f"{viewer.url}api/runs/0/search?text=number%202&after={after}"
            with urllib.request.urlopen(address) as answer:
                part = json.load(answer)
            assert len(part["searched"]) <= 1, "no answer waits for the whole run"
            searched.update(part["searched"])
            after = part["after"]
            lefts.append(part["left"])

        while not lefts or lefts[-1]:
            ask()
        assert lefts == [3, 2, 1, 0]
        assert searched == {name(1, 1): False, name(1, 2): True, name(2, 3): False, name(2, 4): False}
        write_episode(run_dir, 2, 3, reward=0.0, final_observation="number 2")
        get(f"{viewer.url}api/runs/0/episodes")
        ask()
        assert (lefts[-1], searched[name(2, 3)]) == (0, True)


@pytest.mark.browser
async def test_a_search_shows_what_is_found_so_far_and_ends_at_the_next_one(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = write_run(tmp_path / "run", [0.0] * 30)
    count = "document.querySelector('.count').textContent"
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 30)
        monkeypatch.setattr("harbor_gym.report.viewer._READ_SEC", 0)
        note = "new MutationObserver(() => counts.push(node.textContent)).observe(node, {childList: true})"
        await page.run(f"globalThis.counts = []; {{const node = document.querySelector('.count'); {note}}}")
        box = "const box = document.querySelector('.search'); box.value = text"
        find = f"(text) => {{{box}; box.dispatchEvent(new Event('input'))}}"
        await page.run(f"({find})('number')")
        await page.wait_for("counts.includes('30 of 30 episodes')")
        shown = await page.run("counts")
        assert "7 of 30 episodes, 23 not searched yet" in shown, shown
        await page.run(f"({find})('no such text'), new Promise((done) => setTimeout(done, 160))")
        await page.run(f"({find})('number 7')")
        await page.wait_for(f"{count} === '1 of 30 episodes' && {ROWS}.join() === '7'")
        # An episode that is written meanwhile is searched, too.
        write_episode(run_dir, 3, 31, reward=0.0, final_observation="number 7")
        await page.wait_for(f"{count} === '2 of 31 episodes' && {ROWS}.join() === '7,31'")
        await page.run(f"({find})('')")
        await page.wait_for(f"{ROWS}.length === 31")


def test_a_run_that_forgot_episodes_is_given_whole(run_dir: Path) -> None:
    with Viewer([run_dir], port=0) as viewer:
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes") as answer:
            since = json.load(answer)["revision"]
        next(run_dir.rglob("episode_002.json")).unlink()
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes?since={since}") as answer:
            part = json.load(answer)
        assert part["whole"]
        assert [episode["episode"] for episode in part["episodes"]] == [1, 3, 4]


@pytest.mark.browser
async def test_a_large_runs_rows_are_made_as_they_are_reached(page: Page, large_run: Path) -> None:
    last = await asyncio.to_thread(lambda: max(large_run.rglob("*.json")))
    name = last.relative_to(large_run / "transcripts").with_suffix("").as_posix()
    with Viewer([large_run], port=0) as viewer:
        await page.open(viewer.url)
        await page.wait_for(f"document.querySelector('.count')?.textContent === '{LARGE} of {LARGE} episodes'")
        await page.wait_for(TITLE)
        assert await page.run(f"{ROWS}.length") < LARGE / 2
        await page.run("document.querySelector('.scroll').scrollTo(0, 1e9)")
        await page.wait_for(f"{ROWS}.length > 300")
        await page.run(f"location.hash = encodeURIComponent('{name}')")
        await page.wait_for(f"document.querySelector('tr.chosen').dataset.name === '{name}'")
        assert await page.run(f"{ROWS}.length") == LARGE
