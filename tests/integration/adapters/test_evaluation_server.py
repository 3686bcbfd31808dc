"""``harbor-gym eval`` against a server of others: ``transformers serve`` with a small model made on the spot."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harbor_gym.embedded.demonstrations import play_in_env
from harbor_gym.embedded.demonstrator import Demonstrator, Script
from tests.helpers.engines import require_engine
from tests.helpers.loopback import reserved_port
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import FAKE, fake_config
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SOLVED: dict[str, Any] = {"solved_when": {"/srv/answer": "done"}}
START_SEC = 240.0


@dataclass(frozen=True)
class Served:
    url: str
    model: str
    task_dir: Path


def script() -> Script:
    def stage(keystrokes: str | None, following: str | None = None) -> dict[str, Any]:
        move = {"kind": "good", "weight": 1, "analysis": "a", "plan": "p", "keystrokes": keystrokes, "next": following}
        return {"moves": [move]}

    stages = {"start": stage(DONE, "end"), "end": stage(None)}
    return Script.model_validate({"format_version": 1, "max_turns": 4, "first_stage": "start", "stages": stages})


def make_model(task_dir: Path, folder: Path) -> Path:
    """Return a model that has learnt by heart how to solve the task in our own loop, and to confirm it."""
    from harbor_gym.embedded.warm_start import warm_start

    config = fake_config(task_dir, **SOLVED, confirm_task_complete=True)
    played = asyncio.run(play_in_env(config, Demonstrator(script(), random.Random(0))))
    assert (played.reward, played.turns) == (1.0, 3)
    return warm_start([played.messages], folder, renderer_name="qwen3_instruct", steps=16)


async def wait_until_it_answers(process: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + START_SEC
    async with aiohttp.ClientSession() as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                async with client.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.2)
    raise AssertionError(f"transformers serve did not start: exit code {process.poll()}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    for engine in ("server", "tinker"):
        require_engine(engine)
    folder = tmp_path_factory.mktemp("served")
    task_dir = write_task(folder / "task")
    model = make_model(task_dir, folder / "policy")
    argv = [str(Path(sys.executable).with_name("transformers")), "serve", str(model), "--device", "cpu"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with reserved_port() as port:
        with (folder / "serve.log").open("w") as log:
            process = subprocess.Popen(
                [*argv, "--host", "127.0.0.1", "--port", str(port)], env=env, stdout=log, stderr=log, text=True
            )
        try:
            url = f"http://127.0.0.1:{port}"
            try:
                asyncio.run(wait_until_it_answers(process, url))
            except AssertionError as exc:
                raise AssertionError((folder / "serve.log").read_text()[-3000:]) from exc
            yield Served(url, str(model), task_dir)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def evaluate(served: Served, output: Path, *arguments: str) -> dict[str, Any]:
    given = ["--env", FAKE, "--sandbox-option", f"solved_when={json.dumps(SOLVED['solved_when'])}"]
    given += ["--model", served.model, "--base-url", served.url, "--temperature", "0", "--max-tokens", "80"]
    given += ["--episodes", "2", "--attempts", "1,2", "--output", str(output), *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "harbor_gym", "eval", str(served.task_dir), *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_SEC,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "[2/2, solved 2/2]" in done.stdout
    return json.loads((output / "eval.json").read_text())


@pytest.mark.parametrize(
    "agent",
    [
        (),
        ("--agent", "tests.helpers.gateway.format_agent:FormatAgent", "--agent-option", "base_url={gateway_url}"),
    ],
    ids=["our own loop", "an agent behind the gateway"],
)
def test_two_episodes(agent: tuple[str, ...], served: Served, tmp_path: Path) -> None:
    report = evaluate(served, tmp_path / "out", *agent)
    assert report["overall"]["solved"] == 2
    episodes = [json.loads(line) for line in (tmp_path / "out/episodes.jsonl").read_text().splitlines()]
    graded = [item for item in episodes if "reward" in item]
    assert [(item["reward"], item["end_reason"]) for item in graded] == [(1.0, "completed")] * 2
    for item in graded:
        assert item["prompt_tokens"] > 0
        assert 0 < item["sampled_tokens"] < 240
    transcripts = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("episode_*.json")]
    for transcript in transcripts:
        assert DONE.strip() in json.loads(transcript["turns"][0]["action"])["commands"][0]["keystrokes"]
    assert len(transcripts) == 2
