"""The newcomer's command with a pretrained model: demonstrations, fine-tuning and a batch, in real sandboxes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym import report
from tests.helpers.paths import ROOT

pytestmark = [
    pytest.mark.pretrained,
    pytest.mark.server,
    pytest.mark.tinker,
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]


def test_a_pretrained_model_is_fine_tuned_and_trained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["--task-dir", str(ROOT / "tasks/devops_task"), "--env", "local", "--backend", "local"]
    flags += ["--model", "smollm2-135m", "--demonstrations", "2", "--group-size", "2", "--num-batches", "1"]
    flags += ["--max-turns", "2", "--max-tokens", "48", "--server-timeout-sec", "900", "--log-path", str(run)]
    done = subprocess.run(
        [sys.executable, "-m", "harbor_gym", "train", *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    policy = Path(json.loads((run / "config.json").read_text())["model_name"])
    record = json.loads((policy / "warm_start.json").read_text())
    shutil.rmtree(policy.parent)  # half a gigabyte, which nobody wants again
    assert (record["conversations"], record["parameters"]) == (2, 134_515_008)
    (batch,) = report.read_metrics(run / "metrics.jsonl")
    assert batch["env/all/total_episodes"] == 2
    assert batch["env/all/reward/total"] in (0, 0.5, 1)
    # What was sampled has the probability that the trainer computes.
    assert abs(batch["optim/kl_sample_train_v1"]) < 1e-3
    assert len(list(run.rglob("episode_*.json"))) == 2
    assert [path.name for path in run.glob("server/checkpoints/*/final*")]
