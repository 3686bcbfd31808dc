"""recipes/train.py --agent, real to the last file: two batches through Terminus-2, by a policy of random weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym import report
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.policies.random_policy import write_random_policy
from tests.helpers.recipe_runs import SECRETS

pytestmark = [
    pytest.mark.server,
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("nothing_left"),
]

TASK = ROOT / "tasks" / "devops_task"


def test_two_batches_of_terminus_2(tmp_path: Path) -> None:
    for engine in ("server", "tinker", "local"):
        require_engine(engine)
    model = write_random_policy(tmp_path / "model")
    inherited = {name: value for name, value in os.environ.items() if name not in SECRETS}
    log_path = tmp_path / "run"
    arguments = ["--task-dir", str(TASK), "--env", "local", "--backend", "local", "--agent", "terminus-2"]
    arguments += ["--model-name", str(model), "--renderer-name", "qwen3_instruct"]
    arguments += ["--log-path", str(log_path), "--save-every", "0"]
    arguments += ["--group-size", "2", "--num-batches", "2", "--max-turns", "2", "--server-timeout-sec", "900"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "recipes/train.py"), *arguments],
        env=inherited,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"run folder: {log_path}"
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("batch ")] == ["1/2", "2/2"]
    batches = report.read_metrics(log_path / "metrics.jsonl")
    assert [batch["step"] for batch in batches] == [0, 1]
    for batch in batches:
        assert batch["env/all/total_episodes"] == 2
        assert batch["env/all/infra/lost"] == 0
        assert 1 <= batch["env/all/turns_per_episode"] <= 2
        assert batch["env/all/gateway/calls"] >= 1
    assert [task["name"] for task in json.loads((log_path / "tasks.json").read_text())["tasks"]] == [TASK.name]
    assert (log_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    transcripts = [json.loads(path.read_text()) for path in sorted(log_path.rglob("episode_*.json"))]
    assert len(transcripts) == 4
    for transcript in transcripts:
        assert transcript["turns"][0]["observation"].startswith("You are an AI assistant")
        assert transcript["reward"] in (0, 1)
        assert transcript["end_reason"]
    (checkpoint,) = (log_path / "checkpoints.jsonl").read_text().splitlines()
    assert json.loads(checkpoint)["state_path"].startswith("tinker://")
