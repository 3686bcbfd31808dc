"""The configurations for Prime-RL: they train on tasks that are here. Neither verifiers nor Prime-RL is needed."""

import tomllib

import pytest

from tests.helpers.paths import ROOT


@pytest.mark.parametrize("name", ["qwen3_8b_docker", "qwen3_8b_modal", "tiny_cpu"])
def test_the_recipes_train_on_harbor_tasks_that_are_here(name: str) -> None:
    orchestrator = tomllib.loads((ROOT / f"recipes/prime_rl/{name}.toml").read_text())["orchestrator"]
    assert orchestrator["train"]["source"]
    for split in ("train", "eval"):
        for source in orchestrator.get(split, {}).get("source", ()):
            env = source["env"]
            assert env["taskset"]["id"] == env["agent"]["harness"]["id"] == "harbor-gym-verifiers"
            assert all((ROOT / task).is_dir() for task in env["taskset"]["tasks"])
            assert "step_rewards" not in env["agent"]["harness"]["terminal_env"]
    assert orchestrator["renderer"] == {"name": "qwen3", "thinking_retention": "all"}
