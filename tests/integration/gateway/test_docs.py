"""The programs and commands of docs/agents.md run as they stand there, but for addresses, the model and the task."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import Sample
from tests.helpers.chats.chat_templates import QWEN3
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.policies.token_policies import message
from tests.helpers.recipe_runs import run_recipe
from tests.helpers.tasks import DONE, write_task

PAGE = (ROOT / "docs/agents.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
ANSWERS = (message(DONE), message(None, complete=True), message(None, complete=True))


RUN = """
import os, runpy, sys
for program in sys.argv[1:]:
    os.environ.pop("LITELLM_LOCAL_MODEL_COST_MAP", None)
    runpy.run_path(program, run_name="__main__")
    print(os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP"))
"""
"""One process for all: it imports for ten seconds. litellm reads the variable, without which it asks the internet."""


async def by_turn(prompt: Sequence[int]) -> Sample:
    """Answer from the script, by the number of answers in the prompt."""
    tokenizer = byte_level_tokenizer()
    turn = tokenizer.decode(list(prompt)).count("<|im_start|>assistant") - 1
    return Sample([*tokenizer.encode(ANSWERS[turn], add_special_tokens=False), tokenizer.eos_token_id])


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    async with serve(EngineDouble(by_turn)) as double:
        yield double


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_the_programs(engine: EngineDouble, tmp_path: Path) -> None:
    require_engine("local")
    tokenizer: Any = byte_level_tokenizer()
    tokenizer.chat_template = QWEN3
    tokenizer.save_pretrained(tmp_path / "model")
    places = {
        "http://127.0.0.1:8000": engine.url,
        "http://127.0.0.1:30000": engine.url,
        "Qwen/Qwen3-4B": str(tmp_path / "model"),
        "task:devops_task": str(write_task(tmp_path / "task")),
    }
    for number, text in enumerate(PROGRAMS):
        for place, own in places.items():
            text = text.replace(place, own)
        (tmp_path / f"{number}.py").write_text(text)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, *(f"{number}.py" for number in range(len(PROGRAMS)))),
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        output, errors = (stream.decode() for stream in await process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors[-3000:]
    sampled = sum(len(tokenizer.encode(answer, add_special_tokens=False)) + 1 for answer in ANSWERS)
    first, second, prices, result, segment, prices_again = output.splitlines()
    assert (prices, prices_again) == ("True", "True")
    for line in (first, second):
        assert (line.split()[:2], int(line.split()[-1])) == (["1.0", "completed"], sampled)
    assert "1.0" in result
    assert segment.split(maxsplit=1)[1] == f"{sampled} {tuple(range(len(ANSWERS)))}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_flags_that_it_names(command: str) -> None:
    flags = re.findall(r"--[a-z-]+", command)
    assert flags
    program, name, *_ = command.split()
    assert program == "harbor-gym"
    shown = run_recipe(name, "--help", env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).stdout
    assert [flag for flag in flags if flag not in shown] == []


def test_the_table_lists_the_agents() -> None:
    from harbor_gym.gateway.agents import AGENTS

    rows = dict(re.findall(r"^\| ([a-z0-9-]+) +\| (?:this process|the sandbox) +\| ([a-z ]+?) +\|", PAGE, re.MULTILINE))
    assert rows == {name: agent.wire.replace("_", " ") for name, agent in AGENTS.items()}
