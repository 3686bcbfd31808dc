"""A run that is killed and resumed is the run that nobody killed: same tokens, same rewards, each batch once."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import report
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.policies.random_policy import write_random_policy
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.server, pytest.mark.tinker, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A policy of random weights, small enough to compile and train in no time, and of few words."""
    require_engine("server")
    require_engine("tinker")
    return write_random_policy(tmp_path / "model")


async def start(model_dir: Path, task_dir: Path, log_path: Path, *more: str) -> asyncio.subprocess.Process:
    flags = (
        *("--task-dir", task_dir, "--env", "tests.helpers.sandboxes.judged:Judged", "--log-path", log_path),
        *("--backend", "local", "--model-name", model_dir),
        # For a policy that knows nothing: each of its messages is typed, so that there is something to learn.
        *("--action-format", "keystrokes", "--terminal-max-wait-sec", 1),  # of these, many are empty: they wait
        *("--renderer-name", "qwen3_instruct", "--lora-rank", 8, "--learning-rate", 0.003, "--seed", 5),
        *("--group-size", 4, "--num-batches", 4, "--save-every", 2, "--max-turns", 2, "--max-tokens", 24),
        *("--eval-every", 2, "--test-episodes", 2, "--eval-temperature", 1, "--kl-penalty-coef", 0.01),
    )
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "recipes" / "train.py")),
        *(*map(str, flags), *more),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def end(process: asyncio.subprocess.Process) -> None:
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    assert b"\x1b" not in errors, "colour codes in a pipe"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def output(log_path: Path) -> dict[str, list[tuple[str, str]]]:
    """Return each episode's observations and answers."""
    folder = log_path / "transcripts"
    return {
        path.relative_to(folder).as_posix(): [(turn["observation"], turn["action"]) for turn in document["turns"]]
        for path in folder.rglob("*.json")
        if (document := json.loads(path.read_text()))
    }


async def test_a_killed_run_goes_on_as_if_nothing_had_been(model_dir: Path, tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "task")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    killed = await start(model_dir, task_dir, broken)
    async with asyncio.timeout(600):
        while len(report.read_metrics(broken / "metrics.jsonl")) < 3:  # it may be half through a line
            assert killed.returncode is None, (await killed.communicate())[1].decode()[-3000:]
            await asyncio.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    at_the_kill = output(broken)
    assert [record["name"] for record in lines(broken / "checkpoints.jsonl")] == ["000002"]
    with (broken / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 3, "half a li')

    await end(await start(model_dir, task_dir, broken, "--log-dir-exists", "resume"))
    await end(await start(model_dir, task_dir, whole))

    ours, theirs = lines(broken / "metrics.jsonl"), lines(whole / "metrics.jsonl")
    assert [record["step"] for record in ours] == [record["step"] for record in theirs] == [0, 1, 2, 3]
    assert [record["step"] for record in lines(broken / "timing_spans.jsonl")] == [0, 1, 2, 3]
    assert all("kl_policy_base" in record for record in theirs)
    rewards = [[record["env/all/reward/total"] for record in run] for run in (ours, theirs)]
    assert rewards[0] == rewards[1]
    assert len(set(rewards[0])) > 1, "there must be something to distinguish"
    assert output(broken) == output(whole)
    before, after = at_the_kill, output(broken)
    again = [name for name in before if "train/batch_0003" in name]
    assert again
    assert all(before[name] == after[name] for name in again)
    played = [
        sorted(map(str, (after[name] for name in after if f"train/batch_{batch:04d}/" in name)))
        for batch in range(1, 5)
    ]
    assert len(set(map(tuple, played))) == 4, "the same seeds would make each batch the same"
    evaluated = [json.loads((run / "best.json").read_text()) for run in (broken, whole)]
    assert evaluated[0] == evaluated[1]
    assert [(item["batch"], item["checkpoint"]) for item in evaluated[0]["evaluations"]] == [
        (0, "base"),
        (2, "000002"),
        (4, "final"),
    ]
    exported = [path.name for path in (broken / "best").glob("*")]
    assert ("adapter_model.safetensors" in exported) == (evaluated[0]["best"]["batch"] > 0)
    saved = [[record["name"] for record in lines(run / "checkpoints.jsonl")] for run in (broken, whole)]
    assert saved[0] == saved[1]
    assert (saved[0][0], saved[0][-1]) == ("000002", "final")
