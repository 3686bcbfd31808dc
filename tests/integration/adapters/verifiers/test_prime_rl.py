"""Prime-RL's own code on our plugin, as far as it goes without a GPU: configurations, env server, GRPO, packing.

Prime-RL is a git checkout: docs/verifiers.md has the commands that put it beside verifiers.
"""

import asyncio
import itertools
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import Sample
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config, message
from tests.helpers.tokenizers import byte_level_tokenizer
from tests.helpers.verifiers.episodes import Script
from tests.helpers.verifiers.token_server import TokenServer, serve

pytestmark = [pytest.mark.verifiers, pytest.mark.prime_rl, pytest.mark.slow, pytest.mark.timeout(1800)]

RECIPES = ROOT / "recipes/prime_rl"
CONFIGS = sorted(path.stem for path in RECIPES.glob("*.toml"))
SOLVING = Script((message("echo done > /srv/answer\n"), COMPLETE))
GIVING_UP = Script((COMPLETE,))

LEARNT, LEARNING_STEPS = 0.8, 40
TINY_HARNESS = {
    "id": "harbor-gym-verifiers",
    "terminal_env": {"max_turns": 4, "action_format": "keystrokes", "confirm_task_complete": False},
}


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places, **variables}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


def test_every_configuration_is_one_of_prime_rls() -> None:
    from prime_rl.configs.rl import RLConfig

    from harbor_gym.adapters.verifiers import HarborHarnessConfig
    from harbor_gym.adapters.verifiers.prime_rl import read_config

    assert CONFIGS == ["qwen3_8b_docker", "qwen3_8b_modal", "tiny_cpu"]
    for name in CONFIGS:
        config = RLConfig.model_validate(read_config(RECIPES / f"{name}.toml"))
        (source,) = config.orchestrator.train.source
        assert isinstance(source.env.agent.harness, HarborHarnessConfig)
        assert config.orchestrator.renderer.thinking_retention == "all"


def test_our_command_starts_theirs(tmp_path: Path) -> None:
    config = RECIPES / "tiny_cpu.toml"
    done = run(RECIPES / "train.py", "--config", config, "--dry-run", "--output-dir", tmp_path, "--run.name", "dry")
    if "a checkout of" not in done.stdout and "newer than" in done.stderr:
        assert done.returncode == 1, "an older Prime-RL is refused"
        code = "from prime_rl.entrypoints.rl import main; main()"
        done = run("-c", code, "@", config, "--dry-run", "--output-dir", tmp_path, "--run.name", "dry")
    assert done.returncode == 0, done.stderr
    assert "Dry run complete" in done.stdout + done.stderr
    assert [path.name for path in tmp_path.rglob("envs/train/*.json")] == ["harbor.json"]


def four_groups(tasks: Sequence[Path], model_dir: Path) -> Any:
    """Return the recipe's orchestrator for four groups of 16 in fake sandboxes."""
    from tests.helpers.verifiers.prime_rl import orchestrator_config

    harness = {
        "id": "harbor-gym-verifiers",
        "sandbox": FAKE,
        "sandbox_options": {"solved_when": {"/srv/answer": "done"}},
        "terminal_env": {"confirm_task_complete": False},
    }
    return orchestrator_config(
        RECIPES / "tiny_cpu.toml",
        env={"taskset": {"tasks": [str(task) for task in tasks]}, "agent": {"harness": harness}},
        batch_size=64,
        model={"name": str(model_dir)},
        env_server_base_port=15_100,
    )


async def test_64_rollouts_become_samples_with_advantages(tmp_path: Path) -> None:
    from tests.helpers.verifiers.prime_rl import Orchestrator, env_server

    model_dir = tmp_path / "model"
    byte_level_tokenizer().save_pretrained(model_dir)
    tasks = [fake_config(tmp_path / f"task_{number}").task_dir for number in range(4)]
    first_turns = itertools.count(1)

    async def sample(prompt: Sequence[int]) -> Sample:
        text = byte_level_tokenizer().decode(list(prompt))
        if text.count("<|im_start|>assistant") > 1:
            return await SOLVING(prompt)
        return await (SOLVING if next(first_turns) % 4 else GIVING_UP)(prompt)

    config = four_groups(tasks, model_dir)
    async with serve(TokenServer(sample)) as server, env_server(config, tmp_path):
        orchestrator = Orchestrator(config, server, model_dir)
        await orchestrator.start()
        assert [task.data.name for task in orchestrator.tasks] == [task.name for task in tasks]
        batches = [await orchestrator.run_group(task) for task in orchestrator.tasks]
        await orchestrator.close()
    assert batches[:3] == [None, None, None]
    assert len(orchestrator.rewards) == 64
    assert sorted(set(filter(None, orchestrator.rewards))) == [1.0]
    (batch,) = batches[3:]
    _check_samples(batch.samples, orchestrator, server, config.group_size)
    packed = orchestrator.pack(batch)
    assert sum(len(item.seq_lens) for item in packed) == len(batch.samples)
    assert sum(sum(item.loss_mask) for item in packed) == sum(sum(sample.mask) for sample in batch.samples)


def _check_samples(samples: Sequence[Any], orchestrator: Any, server: TokenServer, group_size: int) -> None:
    """Every sample is a conversation of the server's, and its advantage the reward less its group's mean."""
    expected: dict[tuple[int, ...], set[float]] = defaultdict(set)
    for start in range(0, len(orchestrator.rewards), group_size):
        rewards = orchestrator.rewards[start : start + group_size]
        mean = math.fsum(rewards) / len(rewards)
        for trace, reward in zip(orchestrator.traces[start : start + group_size], rewards, strict=True):
            (branch,) = trace.branches
            expected[tuple(branch.token_ids)].add(round(reward - mean, 5))
    assert samples
    for sample in samples:
        tokens = tuple(sample.token_ids)
        assert tokens in server.conversations
        trained = {round(value, 5) for value, kept in zip(sample.advantages, sample.mask, strict=True) if kept}
        assert trained <= expected[tokens]
        assert trained != {0.0}


@pytest.mark.timeout(3600)
async def test_a_tiny_policy_learns_from_what_is_packed(tmp_path: Path) -> None:
    """Samples, masks and advantages are right if a policy that trains on nothing else gets better."""
    from prime_rl.configs.trainer import DefaultLossConfig

    from tests.helpers.verifiers.letter_policy import ANSWER, INSTRUCTION, LetterPolicy
    from tests.helpers.verifiers.prime_rl import Orchestrator, env_server, orchestrator_config

    policy = await asyncio.to_thread(LetterPolicy, tmp_path, learning_rate=1.0)
    model_dir = tmp_path / "model"
    policy.tokenizer.save_pretrained(model_dir)
    task = fake_config(tmp_path / "letter").task_dir
    await asyncio.to_thread((task / "instruction.md").write_text, INSTRUCTION)
    harness = {"sandbox": FAKE, "sandbox_options": {"solved_when": {ANSWER: "c"}}}
    config = orchestrator_config(
        RECIPES / "tiny_cpu.toml",
        env={"taskset": {"tasks": [str(task)]}, "agent": {"harness": {**TINY_HARNESS, **harness}}},
        model={"name": str(model_dir)},
        env_server_base_port=15_200,
    )
    means: list[float] = []
    async with serve(TokenServer(policy)) as server, env_server(config, tmp_path):
        orchestrator = Orchestrator(config, server, model_dir)
        await orchestrator.start()
        (task_of_run,) = orchestrator.tasks
        while len(means) < LEARNING_STEPS and (not means or means[-1] < LEARNT):
            batch = await orchestrator.run_group(task_of_run)
            rewards = orchestrator.rewards[-config.group_size :]
            assert None not in rewards
            means.append(math.fsum(rewards) / len(rewards))
            print(f"step {len(means)}: mean reward {means[-1]:.2f}", flush=True)  # noqa: T201  # the learning curve
            if batch is not None and batch.samples:
                ratio = await asyncio.to_thread(policy.train, orchestrator.pack(batch), DefaultLossConfig())
                assert ratio < 1e-3, "the trainer's log-probabilities are the sampler's: the same tokens, in one order"
            orchestrator.advance()
        await orchestrator.close()
    assert means[0] <= 0.5
    assert means[-1] >= LEARNT
