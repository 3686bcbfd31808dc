"""A killed run plays its next batches again when it is resumed: same tokens, same rewards, each batch once."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import report
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.server, pytest.mark.tinker, pytest.mark.slow, pytest.mark.timeout(1200)]


async def start(model_dir: Path, task_dir: Path, log_path: Path, *more: str) -> asyncio.subprocess.Process:
    flags = (
        *("--task-dir", task_dir, "--env", "tests.helpers.sandboxes.judged:Judged", "--log-path", log_path),
        *("--backend", "local", "--model-name", model_dir, "--server-timeout-sec", 900),
        # For a policy that knows nothing: each of its messages is typed, so that there is something to learn.
        *("--action-format", "keystrokes", "--terminal-max-wait-sec", 1),  # of these, many are empty: they wait
        *("--renderer-name", "qwen3_instruct", "--lora-rank", 8, "--learning-rate", 0.003, "--seed", 5),
        *("--group-size", 4, "--num-batches", 6, "--save-every", 3, "--max-turns", 2, "--max-tokens", 24),
        *("--eval-every", 3, "--test-episodes", 2, "--eval-temperature", 1, "--kl-penalty-coef", 0.01),
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


def evaluations(log_path: Path) -> list[dict[str, Any]]:
    return json.loads((log_path / "best.json").read_text())["evaluations"]


def written(log_path: Path, name: str) -> int:
    return (log_path / "transcripts" / name).stat().st_mtime_ns


async def test_a_killed_run_goes_on_as_if_nothing_had_been(policies: Path, tmp_path: Path) -> None:
    """Two batches after its last checkpoint: the first one's training decides the second."""
    task_dir = write_task(tmp_path / "task")
    run, model_dir = tmp_path / "run", policies / "random"
    killed = await start(model_dir, task_dir, run)
    async with asyncio.timeout(600):
        while len(report.read_metrics(run / "metrics.jsonl")) < 5:  # it may be half through a line
            assert killed.returncode is None, (await killed.communicate())[1].decode()[-3000:]
            await asyncio.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    before, unbroken, evaluated_before = output(run), lines(run / "metrics.jsonl"), evaluations(run)
    again = [name for name in before if name.startswith(("train/batch_0004", "train/batch_0005", "test/batch_0003"))]
    times = {name: written(run, name) for name in again}
    assert [record["step"] for record in unbroken] == [0, 1, 2, 3, 4]
    assert [record["name"] for record in lines(run / "checkpoints.jsonl")] == ["000003"]
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5, "half a li')

    await end(await start(model_dir, task_dir, run, "--log-dir-exists", "resume"))

    whole, after = lines(run / "metrics.jsonl"), output(run)
    assert [record["step"] for record in whole] == [0, 1, 2, 3, 4, 5]
    assert [record["step"] for record in lines(run / "timing_spans.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert all("kl_policy_base" in record for record in whole)
    rewards = [record["env/all/reward/total"] for record in whole]
    assert rewards[:5] == [record["env/all/reward/total"] for record in unbroken]
    assert len(set(rewards)) > 1, "there must be something to distinguish"
    assert len(again) == 4 + 4 + 2
    assert all(written(run, name) > times[name] for name in again), "they were not played again"
    assert {name: after[name] for name in again} == {name: before[name] for name in again}
    played = [
        sorted(map(str, (after[name] for name in after if f"train/batch_{batch:04d}/" in name)))
        for batch in range(1, 7)
    ]
    assert len(set(map(tuple, played))) == 6, "the same seeds would make each batch the same"
    assert evaluations(run)[:2] == evaluated_before
    assert [(item["batch"], item["checkpoint"]) for item in evaluations(run)] == [
        (0, "base"),
        (3, "000003"),
        (6, "final"),
    ]
    exported = [path.name for path in (run / "best").glob("*")]
    best = json.loads((run / "best.json").read_text())["best"]
    assert ("adapter_model.safetensors" in exported) == (best["batch"] > 0)
    saved = [record["name"] for record in lines(run / "checkpoints.jsonl")]
    assert (saved[0], saved[-1]) == ("000003", "final")
