"""verifiers' own command line with our plugin, against the process of a token-id server."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import HFCodec
from harbor_gym.types import ChatMessage
from tests.helpers.chats.chat_templates import QWEN3
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.paths import ROOT, TASKS
from tests.helpers.sandboxes.fake_episodes import COMPLETE
from tests.helpers.tasks import write_task
from tests.helpers.verifiers.scripted_process import scripted_process, solving_answers

# Three processes import verifiers, which takes seconds each where the machine is busy with nothing else.
pytestmark = [pytest.mark.verifiers, pytest.mark.local, pytest.mark.timeout(900)]

RECIPE = ROOT / "recipes/verifiers_eval.toml"
AT_ONCE = 2


def evaluate(tmp_path: Path, client: str, url: str, tasks: list[Path]) -> list[Any]:
    """Run the recipe with ``vf-eval`` on other tasks and return the traces."""
    import verifiers.v1 as vf

    output, config = tmp_path / "out", tmp_path / "eval.json"
    settings = tomllib.loads(RECIPE.read_text())
    settings["env"]["taskset"]["tasks"] = [str(task) for task in tasks]
    config.write_text(json.dumps(settings))
    arguments = [
        *("--model", "policy", "--num-rollouts", "1", "--max-concurrent", str(AT_ONCE), "--no-rich"),
        *("--output-dir", output, "--env.agent.harness.terminal-env.sandbox", "local"),
        *("--client.type", client, "--client.base-url", url, "--client.api-key-var", "NO_SUCH_KEY"),
    ]
    if client == "train":
        byte_level_tokenizer().save_pretrained(tmp_path / "tokenizer")
        arguments += ["--client.renderer.name", "qwen3", "--client.renderer.thinking-retention", "all"]
        arguments += ["--client.renderer-model-name", tmp_path / "tokenizer"]
    command = [Path(sys.executable).with_name("vf-eval"), "@", config, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (written,) = output.rglob("traces.jsonl")
    (resolved,) = output.rglob("configs/resolved/eval.json")
    assert json.loads(resolved.read_text())["push"] is False
    episodes = [vf.WireEpisode.model_validate_json(line) for line in written.read_text().splitlines()]
    return [trace for episode in episodes for trace in episode.traces]


def tokens_of(trace: Any, client: str) -> list[int]:
    """Return a trace's conversation as token ids; an endpoint for chats returns none, so its messages are encoded."""
    (branch,) = trace.branches
    if client == "train":
        return branch.token_ids
    tokenizer = byte_level_tokenizer()
    *before, last = [ChatMessage(role=message.role, content=message.content) for message in trace.messages]
    answer = tokenizer.encode(last["content"], add_special_tokens=False)
    return [*HFCodec(tokenizer, QWEN3).prompt(before), *answer, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def most_at_once(traces: list[Any]) -> int:
    spans = [(trace.timing.agent.start, trace.timing.agent.end) for trace in traces]
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)


@pytest.mark.parametrize("client", ["train", "eval"])
def test_tasks_of_steps_and_of_a_dockerfile_alone_and_a_broken_verifier(client: str, tmp_path: Path) -> None:
    devops, steps = TASKS / "devops_task", TASKS / "log_rotation_steps"
    assert "docker_image" not in (devops / "task.toml").read_text()
    broken = write_task(tmp_path / "broken", test_sh="#!/bin/bash\nexit 1\n", instruction="Break down.\n")
    script = {
        **solving_answers(devops, [devops / "solution/solve.sh"]),
        **solving_answers(
            steps, [steps / f"steps/{name}/solution/solve.sh" for name in ("rotate", "compress", "report")]
        ),
        "Break down.": [COMPLETE, COMPLETE],
    }
    with scripted_process(tmp_path, script) as (url, log):
        played = evaluate(tmp_path, client, url, [devops, steps, broken])
    traces = {trace.task.data.name: trace for trace in played}
    assert {name: trace.reward for name, trace in traces.items() if trace.ok} == {devops.name: 1.0, steps.name: 1.0}
    assert [len(trace.branches) for trace in traces.values()] == [1, 1, 1]
    assert (traces["broken"].ok, traces["broken"].reward) == (False, 0.0)
    assert [error.type for error in traces["broken"].errors] == ["TaskError", "TaskError"]
    assert traces[steps.name].metrics["verifier/step_3/reward"] == 1.0
    assert traces[steps.name].num_turns == 9
    exchanges = [json.loads(line) for line in log.read_text().splitlines()]
    conversations = [item["prompt"] + item["sampled"] for item in exchanges]
    assert all(tokens_of(trace, client) in conversations for trace in traces.values())
    assert most_at_once(played) <= AT_ONCE


def test_the_files_and_flags_of_the_page_are_settings_that_verifiers_takes(tmp_path: Path) -> None:
    page = (ROOT / "docs/verifiers.md").read_text()
    settings = "".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[:2])
    far_away = ', "git+https://github.com/org/suite@COMMIT#tasks", "org/dataset@1.0"'
    assert far_away in settings
    config = tmp_path / "eval.toml"
    config.write_text(settings.replace(far_away, ""))
    flags = [word for text in re.findall(r"`(--(?:env|client)[^`]*)`", page) for word in text.split()]
    assert len(flags) > 8
    command = [Path(sys.executable).with_name("vf-eval"), "@", config, "--dry-run", "--output-dir", tmp_path, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
