"""An 8-bit locale, and Python's own paths in the caller's environment: neither changes a command's results."""

import asyncio
import json
import os
from functools import partial
from pathlib import Path

import pytest

from harbor_gym._runtime.processes import ask
from harbor_gym.sandboxes.tools import run_tool
from tests.helpers.engine_double import EngineDouble, in_turn, serve
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.sandboxes.timed_fakes import Counted
from tests.helpers.tasks import DONE, write_task
from tests.integration.conditions.command import harbor_gym

EIGHT_BITS = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAME = "tâche-№1"


@pytest.mark.local
def test_the_demonstration_plays_both_episodes() -> None:
    done = harbor_gym("demo", **EIGHT_BITS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("completed, reward 1") == 2


@pytest.mark.parametrize(
    ("terminal", "is_read_as"),
    [("ascii", "utf-8"), ("latin-1", "latin-1"), ("utf-8", "utf-8")],
    ids=["ascii, of which click makes UTF-8", "latin-1", "utf-8"],
)
def test_what_the_terminal_lacks_is_replaced(terminal: str, is_read_as: str, tmp_path: Path) -> None:
    done = harbor_gym("init", tmp_path / NAME / "task", **EIGHT_BITS, PYTHONIOENCODING=terminal)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    shown = done.stdout.encode("utf-8", "surrogateescape").decode(is_read_as)
    assert NAME.encode(is_read_as, "replace").decode(is_read_as) in shown


async def test_a_task_is_read_and_recorded_as_utf8(tmp_path: Path) -> None:
    task = write_task(tmp_path / NAME / "task")
    (task / "instruction.md").write_text("Écris « № » dans /srv/answer.\n", encoding="utf-8")
    sandbox = ["--env", Counted.PATH, "--sandbox-option", f"solved_when={json.dumps({'/srv/answer': 'done'})}"]
    async with serve(EngineDouble(write=in_turn(message(DONE), COMPLETE))) as double:
        where = ["--model", "m", "--base-url", double.url, "--output", str(tmp_path / "out")]
        done = await asyncio.to_thread(partial(harbor_gym, "eval", task, *sandbox, *where, **EIGHT_BITS))
    assert done.returncode == 0, done.stderr
    assert "Écris « № » dans" in json.dumps(double.requests[0], ensure_ascii=False)
    transcript = next((tmp_path / "out").rglob("episode_*.json"))
    assert "Écris « № » dans" in json.dumps(json.loads(transcript.read_text(encoding="utf-8")), ensure_ascii=False)


async def test_the_callers_python_reaches_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONHOME", "PYTHONPATH"):
        monkeypatch.setenv(name, "/nowhere")
    _, printed = await run_tool("env")
    for output in (printed, ask("env", timeout_sec=None).stdout):
        assert f"PATH={os.environ['PATH']}\n" in output
        assert "PYTHONHOME" not in output
        assert "PYTHONPATH" not in output
