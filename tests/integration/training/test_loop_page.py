"""The programs of docs/guide/loop.md run as they stand there; the second one's engine is a double."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.chats.chat_templates import QWEN3
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task
from tests.integration.gateway.test_docs import by_turn

OWN_LOOP, MANY = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/loop.md").read_text(), re.DOTALL)

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def run(text: str, folder: Path) -> str:
    """Run a program in a process of its own, and return what it prints."""
    require_engine("local")
    (folder / "program.py").write_text(text)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_loop_trains_what_the_policy_sampled(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended, apart = run(OWN_LOOP, tmp_path).splitlines()
    found = re.fullmatch(r"(\w+), reward ([01])\.0: (\d+) of (\d+) tokens are trained", ended)
    assert found, ended
    assert 10 < int(found[3]) < int(found[4])
    assert float(apart.rpartition(" ")[2]) < 1e-3


async def test_many_episodes_have_a_bar_and_a_report(tmp_path: Path) -> None:
    tokenizer: Any = byte_level_tokenizer()
    tokenizer.chat_template = QWEN3
    tokenizer.save_pretrained(tmp_path / "model")
    async with serve(EngineDouble(by_turn)) as engine:
        places = {
            "http://127.0.0.1:8000": engine.url,
            "Qwen/Qwen3-4B": str(tmp_path / "model"),
            "task:devops_task": str(write_task(tmp_path / "task")),
        }
        text = MANY
        for place, own in places.items():
            text = text.replace(place, own)
        printed = await asyncio.to_thread(run, text, tmp_path)
    assert re.search(r"\[1\.0, 1\.0, 1\.0, 1\.0\] \d+\n", printed)
    assert "rollouts" in printed
    assert re.search(r"\| task +\| 4/4", printed), printed
    assert len(list((tmp_path / "runs/mine/transcripts").rglob("*.json"))) == 4
