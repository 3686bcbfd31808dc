"""The page of a run in a real browser, by keyboard alone, live and as a file."""

import asyncio
import itertools
import json
import os
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
    events += [[1.0, "m", "turn 2"], [1.0, "o", "\r\nthird"]]
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


ROWS = "[...document.querySelectorAll('.list tbody tr')].map(row => row.cells[1].textContent)"
CHOSEN = "document.querySelector('tr.chosen td:nth-child(2)')?.textContent"
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
            await page.wait_for("[...document.querySelectorAll('.curves img')].every(image => image.complete)")
            tops = await page.run(CURVES)
            assert len(tops) == 2, url
            assert tops[0] == tops[1], url


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["live", "file"])
async def test_a_run_is_read_with_the_keyboard_alone(page: Page, run_dir: Path, kind: str) -> None:
    with Viewer([run_dir], port=0) as viewer:
        url = viewer.url if kind == "live" else write_page(run_dir).path.as_uri()
        await opened(page, url, 4)
        assert await page.run(CHOSEN) == "1.1"
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
        await page.wait_for(f"{ROWS}.join() === '1.3'")
        await page.press("Escape")
        await page.press("j")
        await page.wait_for(f"{TITLE}.includes('episode 3 ')")
        # The player: play is a key, and turns are stepped through.
        await page.press("p")
        await page.wait_for("document.querySelector('.player').textContent === 'first\\nsecond'")
        await page.press("n")
        await page.wait_for("document.querySelector('.player').textContent.includes('third')")
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
        assert await page.run(f"({pick})('reward', '+')") == "1.1,1.3"
        assert await page.run(f"({pick})('reward', '-')") == "1.4"
        await page.run(f"({pick})('reward', '')")
        assert await page.run(f"({pick})('end reason', 'max_turns')") == "1.2,1.4"
        await page.run(f"({pick})('end reason', '')")
        assert await page.run(f"({pick})('batch', '2')") == "1.3,1.4"
        await page.run(f"({pick})('batch', '')")
        assert await page.run(f"({pick})('task', 'devops_task')") == "1.1,1.2,1.3,1.4"
        click = "document.querySelector('[title=\"sort by reward\"]').click()"
        assert await page.run(f"{click}, {ROWS}.join()") == "1.1,1.3,1.2,1.4"
        assert await page.run(f"{click}, {ROWS}.join()") == "1.4,1.2,1.3,1.1"
        assert await page.run("document.querySelector('th[aria-sort=ascending]').textContent") == "reward"
        assert float(await page.run("[...document.querySelector('[aria-label=speed]').options].at(-1).value")) > 1
        links = await page.run("[...document.querySelectorAll('.links a')].map(a => a.href)")
        kinds = [await asyncio.to_thread(kind_of, link) for link in links]
        assert kinds == ["application/json", "application/x-asciicast"]
        assert await page.run("[...document.querySelectorAll('img.curve')].every(node => node.naturalWidth > 0)")


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
            place = run_dir if url == viewer.url else Path(run_dir.name)
            name = "train/batch_0001/group_1/episode_002"
            assert words == ["harbor-gym", "play", "--from", f"{place}/{name}", "--turn", "1"]
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
async def test_new_episodes_appear_and_what_was_chosen_stays(page: Page, run_dir: Path) -> None:
    with Viewer([run_dir], port=0) as viewer:
        await opened(page, viewer.url, 4)
        await page.press("j")
        write_episode(run_dir, 3, 9, reward=1.0)
        await page.wait_for(f"{ROWS}.length === 5")
        assert await page.run(CHOSEN) == "1.2"
        address = await page.run("location.hash")
        await page.open(f"{viewer.url}{address}")
        await page.wait_for(f"{TITLE}?.includes('episode 2 ')")


@pytest.mark.browser
async def test_two_runs_have_one_chart_a_quantity_with_their_names(page: Page, run_dir: Path, tmp_path: Path) -> None:
    runs = [run_dir, write_run(tmp_path / "elsewhere" / "run", [0.0, 1.0])]
    drawn = run_curves(runs)
    assert [drawing.count("<polyline") for drawing in drawn] == [2, 2]
    assert all(f">{name}<" in drawing for name in distinct_names(runs) for drawing in drawn)
    with Viewer(runs, port=0) as viewer:
        for url in (viewer.url, write_page(runs).path.as_uri()):
            await opened(page, url, 6)
            await page.wait_for("[...document.querySelectorAll('.curves img')].every(image => image.naturalWidth)")
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
            "api/runs/0/curve?number=9",
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
        assert [episode["number"] for episode in listed] == ["1.1", "1.2", "1.3", "1.4"]
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
        monkeypatch.setattr("harbor_gym.report.viewer.read_episode", lambda *_: pytest.fail("read again"))  # pyright: ignore[reportUnknownLambdaType]
        with urllib.request.urlopen(f"{viewer.url}api/runs/0/episodes") as answer:
            assert len(json.load(answer)["episodes"]) == 4
