"""verifiers' own command line with our plugin, against the process of a token-id server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT, TASKS
from tests.helpers.sandboxes.fake_episodes import COMPLETE
from tests.helpers.tasks import write_task
from tests.helpers.tokenizers import byte_level_tokenizer
from tests.helpers.verifiers.scripted_process import scripted_process, solving_answers

# Three processes import verifiers, which takes seconds each where the machine is busy with nothing else.
pytestmark = [pytest.mark.verifiers, pytest.mark.local, pytest.mark.timeout(900)]

CONFIG = """\
model = "policy"
num_rollouts = 1
push = false
rich = "None"
output_dir = "{output}"

[client]
type = "{client}"
base_url = "{url}"
api_key_var = "NO_SUCH_KEY"
{renderer}
[env.taskset]
id = "harbor-gym-verifiers"
tasks = {tasks}

[env.agent.harness]
sandbox = "local"
terminal_env = {{ max_turns = 12 }}
"""
RENDERER = """\
renderer = {{ name = "qwen3", thinking_retention = "all" }}
renderer_model_name = "{model}"
"""


def evaluate(tmp_path: Path, client: str, url: str, tasks: list[Path]) -> dict[str, Any]:
    """Run ``vf-eval`` and return the traces by task."""
    import verifiers.v1 as vf

    byte_level_tokenizer().save_pretrained(tmp_path / "tokenizer")
    renderer = RENDERER.format(model=tmp_path / "tokenizer") if client == "train" else ""
    names = json.dumps([str(task) for task in tasks])
    config = tmp_path / "eval.toml"
    config.write_text(CONFIG.format(client=client, url=url, renderer=renderer, tasks=names, output=tmp_path / "out"))
    command = [Path(sys.executable).with_name("vf-eval"), "@", config]
    # Harbor's agents and sandboxes may be named by import paths of the caller.
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "out").rglob("traces.jsonl")
    episodes = [vf.WireEpisode.model_validate_json(line) for line in written.read_text().splitlines()]
    return {trace.task.data.name or "": trace for episode in episodes for trace in episode.traces}


@pytest.mark.parametrize("client", ["train", "eval"])
def test_tasks_of_steps_and_of_a_dockerfile_alone_and_a_broken_verifier(client: str, tmp_path: Path) -> None:
    devops, steps = TASKS / "devops_task", TASKS / "log_rotation_steps"
    broken = write_task(tmp_path / "broken", test_sh="#!/bin/bash\nexit 1\n", instruction="Break down.\n")
    script = {
        **solving_answers(devops, [devops / "solution/solve.sh"]),
        **solving_answers(
            steps, [steps / f"steps/{name}/solution/solve.sh" for name in ("rotate", "compress", "report")]
        ),
        "Break down.": [COMPLETE, COMPLETE],
    }
    with scripted_process(tmp_path, script) as (url, log):
        traces = evaluate(tmp_path, client, url, [devops, steps, broken])
    assert {name: trace.reward for name, trace in traces.items() if trace.ok} == {devops.name: 1.0, steps.name: 1.0}
    assert [len(trace.branches) for trace in traces.values()] == [1, 1, 1]
    assert (traces["broken"].ok, traces["broken"].reward) == (False, 0.0)
    assert [error.type for error in traces["broken"].errors] == ["TaskError", "TaskError"]
    assert traces[steps.name].metrics["verifier/step_3/reward"] == 1.0
    assert traces[steps.name].num_turns == 9
    if client == "train":
        exchanges = [json.loads(line) for line in log.read_text().splitlines()]
        conversations = [item["prompt"] + item["sampled"] for item in exchanges]
        assert all(trace.branches[0].token_ids in conversations for trace in traces.values())
