"""`eval` against an endpoint that misbehaves: one line that says why, a status that says it failed, and no hang."""

import asyncio
import contextlib
import json
import logging
import re
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harbor_gym.cli.main import app
from harbor_gym.evaluation import first
from harbor_gym.report import write_page
from harbor_gym.samplers import statuses
from harbor_gym.transcripts import RESULT_NAME
from tests.helpers.certificates import write_certificate
from tests.helpers.engine_double import EngineDouble, Mode, in_turn, serve
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.sandboxes.timed_fakes import Counted
from tests.helpers.tasks import DONE, write_task
from tests.integration.conditions.command import harbor_gym

SOLVED_WHEN = json.dumps({"/srv/answer": "done"})
EPISODES = 3


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations are kept in runs/ of the folder that they are started in."""
    monkeypatch.chdir(tmp_path)


@dataclass
class Ended:
    """An evaluation that is over."""

    code: int
    printed: str
    error: str


@contextlib.asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, *, always: Mode = 200, keys: str = DONE
) -> AsyncGenerator[EngineDouble]:
    monkeypatch.setattr(statuses, "_BACKOFF_SEC", 0.001)
    Counted.started = 0
    async with serve(EngineDouble(write=in_turn(message(keys), COMPLETE))) as double:
        double.always = always
        yield double


async def evaluate(double: EngineDouble, tmp_path: Path, *more: str) -> Ended:
    task = str(write_task(tmp_path / "task"))
    sandbox = ["--env", Counted.PATH, "--sandbox-option", f"solved_when={SOLVED_WHEN}"]
    where = ["--model", "m", "--base-url", double.url, "--episodes", f"{EPISODES}", "--attempts", "1"]
    ended = await asyncio.to_thread(CliRunner().invoke, app, ["eval", task, *sandbox, *where, *more])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (408, "status 408: refused for a reason"),
        (409, "status 409: refused for a reason"),
        (429, "status 429: refused for a reason"),
        (500, "status 500: refused for a reason"),
        (502, "status 502: refused for a reason"),
        ("HTML 502", "status 502: <html> <head><title>Welcome</title></head> <body>nginx</body> </html>"),
        ("bad UTF-8", "did not answer with JSON, but with"),
        ("empty", "did not answer with JSON, but with no text"),
        ("cut", "can't be reached: Response payload is not completed"),
    ],
)
async def test_an_evaluation_without_a_result_fails(
    mode: Mode, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(monkeypatch, always=mode) as double:
        ended = await evaluate(double, tmp_path)
    assert ended.code == 1
    assert ended.error.startswith(f"error: no result: all of {EPISODES} episodes were lost: SamplerError: ")
    assert ended.error.count("\n") == 1
    assert says in ended.error
    assert ended.printed.count(says) == EPISODES, "one line a lost episode"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    for private in ("_Unreachable", "StatusError", "in 0 s"):
        assert private not in ended.printed + ended.error + caplog.text


async def test_json_is_all_that_standard_output_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as double:
        ended = await evaluate(double, tmp_path, "--json", "-o", str(tmp_path / "kept"))
    assert ended.code == 0, ended.error
    assert json.loads(ended.printed) == json.loads((tmp_path / "kept" / RESULT_NAME).read_text())
    assert "pass@1" in ended.error


@pytest.mark.parametrize("mode", [401, 403, 404, "unknown model"])
@pytest.mark.parametrize("agent", [[], ["--agent", "tests.helpers.gateway.format_agent:FormatAgent"]])
async def test_what_can_not_change_ends_the_evaluation_in_its_first_sandbox(
    mode: Mode, agent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--agent-option", "base_url={gateway_url}"] if agent else []
    async with serving(monkeypatch, always=mode) as double:
        ended = await evaluate(double, tmp_path, *agent, *options)
    assert (ended.code, len(double.requests), Counted.started) == (2, 1, 1)
    assert ended.error.count("\n") == 1
    assert "refused for a reason" in ended.error


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (400, "status 400: refused for a reason"),
        ("HTML", "did not answer with JSON, but with <html> <head>"),
        ("no message", "holds no single message"),
    ],
)
@pytest.mark.parametrize(
    "more", [[], ["--rollout-executor", "process", "--n-concurrent", "1"]], ids=["here", "process"]
)
async def test_an_answer_that_stays_is_asked_for_twice(
    mode: Mode, says: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(monkeypatch, always=mode) as double:
        ended = await evaluate(double, tmp_path, *more)
    assert (ended.code, len(double.requests)) == (2, 2), ended.error
    assert ended.error.startswith("error: ")
    assert says in ended.error
    assert ended.error.count("\n") == 1


@pytest.mark.parametrize("mode", [408, 409, 413, 425, 429, 500, 502, "HTML 502", "bad UTF-8", "cut", "empty"])
async def test_what_may_pass_is_asked_again_within_the_episode(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(monkeypatch) as double:
        double.modes = [mode] * 2
        ended = await evaluate(double, tmp_path)
    assert ended.code == 0, ended.error
    assert f"[{EPISODES}/{EPISODES}, solved {EPISODES}/{EPISODES}]" in ended.printed
    assert Counted.started == EPISODES


@pytest.mark.parametrize("mode", [401, 403, 404, "unknown model", (404, b"<html>404 page not found</html>")])
async def test_a_refusal_after_a_good_answer_costs_no_more_than_its_episode(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer that restarts refuses everything for a moment."""
    async with serving(monkeypatch) as double:
        double.modes = [200, 200, mode, mode]
        ended = await evaluate(double, tmp_path)
        assert ended.code == 0, ended.error
        assert f"[{EPISODES}/{EPISODES}, solved {EPISODES}/{EPISODES}]" in ended.printed
        double.modes = [200] * 3 * EPISODES + [mode] * 4
        ended = await evaluate(double, tmp_path, "--n-concurrent", "1", "--episodes", f"{EPISODES + 1}")
    assert ended.code == 0, ended.error
    assert f"[{EPISODES + 1}/{EPISODES + 1}, solved {EPISODES + 1}/{EPISODES + 1}]" in ended.printed
    assert Counted.started == EPISODES + EPISODES + 2, "the last episode was lost once, and played again"


async def test_a_slow_answer_is_reported_and_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "SLOW_SEC", 0.01)
    monkeypatch.setattr(first, "_LOOK_SEC", 0.01)
    async with serving(monkeypatch) as double:
        double.modes, double.release_at = ["hang"], 1 + 3 * (EPISODES - 1)
        ended = await evaluate(double, tmp_path)
    assert ended.code == 0, ended.error
    assert f"waiting for an answer of {double.url}/v1/chat/completions for " in ended.printed


async def test_an_answer_that_trickles_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, always="trickle") as double:
        ended = await evaluate(double, tmp_path)
    assert ended.code == 0, ended.error
    assert f"[{EPISODES}/{EPISODES}, solved {EPISODES}/{EPISODES}]" in ended.printed


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_a_certificate_that_signs_itself_is_named_with_the_remedy(
    is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    Counted.started = 0
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serve(EngineDouble(write=in_turn(message(DONE), COMPLETE)), tls=tls) as double:
        task = write_task(tmp_path / "task")
        sandbox = ["--env", Counted.PATH, "--sandbox-option", f"solved_when={SOLVED_WHEN}"]
        words = ["eval", task, *sandbox, "--model", "m", "--base-url", double.url, "--episodes", "1"]
        done = await asyncio.to_thread(harbor_gym, *words)
    if is_trusted:
        assert done.returncode == 0, done.stderr
        return
    assert (done.returncode, done.stderr.count("\n"), double.requests) == (2, 1, [])
    assert "its certificate is not trusted here (self-signed certificate): SSL_CERT_FILE=FILE" in done.stderr


async def test_an_evaluation_is_kept_and_names_what_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as double:
        ended = await evaluate(double, tmp_path)
    assert ended.code == 0, ended.error
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("eval-task-")
    shown = folder.relative_to(tmp_path)
    assert ended.printed.endswith(
        f"written: {shown / 'eval.json'}\n"
        f"read its episodes: harbor-gym view {shown}, or in one file: harbor-gym report {shown}\n"
    )
    assert len(list((folder / "transcripts").rglob("episode_*.json"))) == EPISODES
    report = await asyncio.to_thread(CliRunner().invoke, app, ["report", str(folder)])
    assert report.stdout == f"{folder / 'report.html'}: {EPISODES} episodes\n"
    head = (folder / "report.html").read_text(encoding="utf-8")
    shown = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", head))
    assert {name: shown[name] for name in ("model", "tasks", "solved", "pass@1", "mean reward")} == {
        "model": "m",
        "tasks": "task",
        "solved": "3 of 3 episodes (reward ≥ 1)",
        "pass@1": "1.00 [0.44, 1.00]",
        "mean reward": "1.00 [0.44, 1.00]",
    }
    assert re.fullmatch(r"\d+ sampled, last prompt \d+", shown["tokens an episode"])
    assert re.fullmatch(r"\d+\.\d s, \d+\.\d s of it sampling", shown["time an episode"])
    assert f"base_url {double.url}, temperature 1" in shown["settings"]
    assert '<table class="failures">' not in head


async def test_the_page_of_an_evaluation_groups_its_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, keys="true\n") as double:
        ended = await evaluate(double, tmp_path, "--output", str(tmp_path / "out"))
        assert ended.code == 0, ended.error
        double.always = 500
        assert (await evaluate(double, tmp_path, "--output", str(tmp_path / "out"), "--episodes", "5")).code == 0
    page = await asyncio.to_thread(lambda: write_page(tmp_path / "out").path.read_text(encoding="utf-8"))
    rows = re.findall(
        '<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td class="number">(.*?)</td><td>(.*?)</td></tr>',
        page.partition('class="failures"')[2],
    )
    which = [", ".join(re.findall("<a href[^>]*>(.*?)</a>", row[4])) for row in rows]
    assert [(row[0], row[3], links) for row, links in zip(rows, which, strict=True)] == [
        ("not solved", "3", "episode 1 of task, episode 2 of task, episode 3 of task"),
        ("lost", "2", "episode 4 of task, episode 5 of task"),
    ]
    assert rows[0][1] == "completed"
    assert "status 500: refused for a reason" in rows[1][1]
    assert "<dt>lost</dt><dd>2 episodes, in no figure</dd>" in page
    # One that is not over has its settings, and its episodes' figures.
    (tmp_path / "out/eval.json").unlink()
    page = await asyncio.to_thread(lambda: write_page(tmp_path / "out").path.read_text(encoding="utf-8"))
    assert "<dt>state</dt><dd>not finished</dd>" in page
    assert re.search('<td>not solved</td><td>completed</td><td>.*?</td><td class="number">3</td>', page)


async def test_a_transcript_tells_how_long_its_episode_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as double:
        ended = await evaluate(double, tmp_path, "--output", str(tmp_path / "out"))
    assert ended.code == 0, ended.error
    played = json.loads((tmp_path / "out/eval.json").read_text(encoding="utf-8"))["episodes"]
    for result in played:
        (path,) = (tmp_path / "out").rglob(f"episode_{result['episode']:03d}.json")
        assert (
            json.loads(path.read_text(encoding="utf-8"))["seconds"] + 0.001 >= result["seconds"] > 0
        )  # both are rounded
