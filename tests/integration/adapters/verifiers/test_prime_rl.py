"""Prime-RL's own code on our plugin, as far as it goes without a GPU: configurations, env server, GRPO, packing.

Prime-RL is a git checkout: docs/verifiers.md has the commands that put it beside verifiers.
"""

import asyncio
import itertools
import math
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import Sample
from tests.contract.players.episode import Script
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.loopback import reserved_port
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message
from tests.helpers.verifiers.sandboxes import ANSWER, BREAKING_ANSWER, Traced

pytestmark = [pytest.mark.verifiers, pytest.mark.prime_rl, pytest.mark.slow, pytest.mark.timeout(1800)]

RECIPES = ROOT / "recipes/prime_rl"
CONFIGS = sorted(path.stem for path in RECIPES.glob("*.toml"))
SOLVING = Script((message("echo done > /srv/answer\n"), COMPLETE))
GIVING_UP = Script((COMPLETE,))

BREAKING = Script((message(f"echo {BREAKING_ANSWER} > {ANSWER}\n"), COMPLETE))

NEVER = {"rules": []}
"""Retries: a broken verifier loses its episode at once."""

LEARNT, LEARNING_STEPS = 0.8, 80


def test_every_configuration_is_one_of_prime_rls() -> None:
    from prime_rl.configs.rl import RLConfig

    from harbor_gym.adapters.verifiers import HarborHarnessConfig

    assert CONFIGS == ["qwen3_8b_docker", "qwen3_8b_modal", "tiny_cpu"]
    for name in CONFIGS:
        config = RLConfig.model_validate(tomllib.loads((RECIPES / f"{name}.toml").read_text()))
        (source,) = config.orchestrator.train.source
        assert isinstance(source.env.agent.harness, HarborHarnessConfig)
        assert config.orchestrator.renderer.thinking_retention == "all"
        assert config.orchestrator.monitors.prime is None, "nothing goes to the platform unless it is asked for"


@pytest.mark.parametrize("name", CONFIGS)
def test_their_command_takes_every_configuration(name: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("rl")
    flags = ("--dry-run", "--output-dir", tmp_path, "--run.name", "dry")
    done = subprocess.run(
        [program, "@", RECIPES / f"{name}.toml", *flags], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Dry run complete" in done.stdout + done.stderr
    written = {path.relative_to(tmp_path / "dry/configs").as_posix() for path in tmp_path.rglob("*.json")}
    servers = {"envs/train/harbor.json"} | ({"envs/eval/harbor-eval.json"} if name == "qwen3_8b_docker" else set())
    assert {path for path in written if path.startswith("envs/")} == servers
    assert {"orchestrator.json", "trainer.json"} <= written


@pytest.fixture
def port() -> Generator[int]:
    """The env server's."""
    with reserved_port() as own:
        yield own


def groups_in_fake_sandboxes(tasks: Sequence[Path], model_dir: Path, pids_dir: Path, port: int) -> Any:
    """Return the recipe's orchestrator for batches of four groups of 16 in fake sandboxes."""
    from tests.helpers.verifiers.prime_rl import orchestrator_config

    pids_dir.mkdir()
    harness = {
        "id": "harbor-gym-verifiers",
        "sandbox": f"{Traced.__module__}:{Traced.__name__}",
        "sandbox_options": {"solved_when": {ANSWER: "done"}, "pids_dir": str(pids_dir)},
        "terminal_env": {"confirm_task_complete": False},
    }
    return orchestrator_config(
        RECIPES / "tiny_cpu.toml",
        port,
        env={"taskset": {"tasks": [str(task) for task in tasks]}, "agent": {"harness": harness, "retries": NEVER}},
        batch_size=64,
        model={"name": str(model_dir)},
    )


async def test_64_rollouts_become_samples_with_advantages_and_the_lost_ones_do_not(tmp_path: Path, port: int) -> None:
    from tests.helpers.verifiers.prime_rl import Orchestrator, env_server

    model_dir, pids_dir = tmp_path / "model", tmp_path / "pids"
    byte_level_tokenizer().save_pretrained(model_dir)
    tasks = [fake_config(tmp_path / f"task_{number}").task_dir for number in range(5)]
    first_turns = itertools.count(1)
    others = [GIVING_UP]

    async def sample(prompt: Sequence[int]) -> Sample:
        """Three of four solve the task; the fourth gives up, and in the last group it breaks the verifier."""
        text = byte_level_tokenizer().decode(list(prompt))
        if text.count("<|im_start|>assistant") > 1:
            return await SOLVING(prompt)
        return await (SOLVING if (number := next(first_turns)) % 4 else others[number // 4 % len(others)])(prompt)

    config = groups_in_fake_sandboxes(tasks, model_dir, pids_dir, port)
    async with serve(EngineDouble(sample)) as server, env_server(config, tmp_path):
        orchestrator = Orchestrator(config, server, model_dir)
        await orchestrator.start()
        assert [task.data.name for task in orchestrator.tasks] == [task.name for task in tasks]
        batches = [await orchestrator.run_group(task) for task in orchestrator.tasks[:4]]
        others[:] = [GIVING_UP, BREAKING]
        assert await orchestrator.run_group(orchestrator.tasks[4]) is None, "what is left waits for another group"
        await orchestrator.close()
    assert len(list(pids_dir.iterdir())) == config.train.source[0].serve.pool.num_workers == 2
    assert batches[:3] == [None, None, None]
    assert orchestrator.rewards[:64].count(1.0) == 48
    assert orchestrator.rewards[:64].count(0.0) == 16
    (batch,) = batches[3:]
    _check_samples(batch.samples, orchestrator, server, config.group_size)
    packed = orchestrator.pack(batch)
    assert sum(len(item.seq_lens) for item in packed) == len(batch.samples) == 64
    assert sum(sum(item.loss_mask) for item in packed) == sum(sum(sample.mask) for sample in batch.samples)
    _check_group_with_losses(orchestrator)


def _check_samples(samples: Sequence[Any], orchestrator: Any, server: EngineDouble, group_size: int) -> None:
    """Every sample is a conversation of the server's, and its advantage the reward less its group's mean."""
    expected: dict[tuple[int, ...], set[float]] = defaultdict(set)
    for start in range(0, 64, group_size):
        rewards = orchestrator.rewards[start : start + group_size]
        mean = math.fsum(rewards) / len(rewards)
        for trace, reward in zip(orchestrator.traces[start : start + group_size], rewards, strict=True):
            (branch,) = trace.branches
            expected[tuple(branch.token_ids)].add(round(reward - mean, 5))
    assert samples
    for sample in samples:
        tokens = tuple(sample.token_ids)
        assert tokens in server.conversations
        trained = _advantages(sample)
        assert trained <= expected[tokens]
        assert trained != {0.0}


def _check_group_with_losses(orchestrator: Any) -> None:
    """Two of the last 16 have no reward: neither is trained on, nor counts in the mean of the others."""
    last = list(zip(orchestrator.traces, orchestrator.rewards, strict=True))[64:]
    lost = [trace for trace, reward in last if reward is None]
    assert [trace.errors[-1].message.split(":")[0] for trace in lost] == ["verifier_error"] * 2
    rewards = {trace.id: reward for trace, reward in last if reward is not None}
    assert sorted(rewards.values()) == [0.0] * 2 + [1.0] * 12
    waiting = orchestrator.waiting()
    assert waiting.keys() == rewards.keys()
    for trace_id, samples in waiting.items():
        assert [_advantages(sample) for sample in samples] == [{round(rewards[trace_id] - 12 / 14, 5)}]


def _advantages(sample: Any) -> set[float]:
    return {round(value, 5) for value, kept in zip(sample.advantages, sample.mask, strict=True) if kept}


@pytest.mark.local
@pytest.mark.timeout(3600)
async def test_a_tiny_policy_learns_from_what_is_packed(tmp_path: Path, port: int) -> None:
    """Samples, masks and advantages are right if a policy that trains on nothing else gets better at a real task."""
    from prime_rl.configs.trainer import DefaultLossConfig

    from tests.helpers.verifiers.prime_rl import Orchestrator, env_server, orchestrator_config
    from tests.helpers.verifiers.repair_policy import TASK, RepairPolicy

    model_dir = tmp_path / "model"
    config = orchestrator_config(RECIPES / "tiny_cpu.toml", port, model={"name": str(model_dir)})
    harness = config.train.source[0].env.agent.harness
    policy = await asyncio.to_thread(RepairPolicy, harness.episode(TASK), learning_rate=0.2)
    policy.tokenizer.save_pretrained(model_dir)
    means: list[float] = []
    async with serve(EngineDouble(policy)) as server, env_server(config, tmp_path):
        orchestrator = Orchestrator(config, server, model_dir)
        await orchestrator.start()
        (task_of_run,) = orchestrator.tasks
        assert Path(task_of_run.data.task_dir) == TASK
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
