"""TRL's HarnessRolloutWorker and AsyncGRPOTrainer on the CPU with sessions of ours, token by token."""

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None or find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[trl]" "harbor-gym[openenv]"', allow_module_level=True)

from harbor_gym import TerminalEnvConfig
from harbor_gym.adapters import openenv
from harbor_gym.adapters.openenv.config import ServerConfig
from harbor_gym.adapters.openenv.suite import TaskSuite
from harbor_gym.adapters.trl import HarborSpec
from harbor_gym.testing import write_tiny_task
from tests.helpers import tiny_trl
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.sandboxes.letters import LETTER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
]

GROUP, MAX_TOKENS = 8, 40


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that writes one of four letters, saved."""
    path = tmp_path_factory.mktemp("policy")
    with HarborSpec(
        tiny_trl.write_letter_task(path / "task"), agent="terminal", sandbox=LETTER, **tiny_trl.SETTINGS
    ) as spec:
        saved, _, _ = tiny_trl.make_letter_policy(spec, path / "saved")
    resource_tracker.ensure_running()  # TRL spawns its worker, and Python keeps this process until the end
    return saved


@pytest.fixture
def suite(tmp_path: Path) -> TaskSuite:
    task = write_tiny_task(tmp_path / "pick_letter")
    (task / "instruction.md").write_text(tiny_trl.INSTRUCTION)
    return TaskSuite.resolve(task)


def config_of(suite: TaskSuite, **options: Any) -> TerminalEnvConfig:
    return TerminalEnvConfig(
        task_dir=suite.tasks("train")[0].path,
        sandbox=FAKE,
        sandbox_options=options or {"solved_when": {tiny_trl.ANSWER: "c"}},
        action_format="keystrokes",  # pyright: ignore[reportArgumentType]  # read by pydantic
        confirm_task_complete=False,
        max_turns=3,
    )


def train(tasks: Any, suite: TaskSuite, model_dir: Path, out: Path, **settings: Any) -> Any:
    """Train with TRL's classes, and return the trainer and the engine."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.experimental.async_grpo import async_rollout_worker
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    from harbor_gym.adapters.openenv import TerminalRolloutWorker

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    engine = tiny_trl.CompletionsEngine(AutoModelForCausalLM.from_pretrained(model_dir), tokenizer)
    rows = Dataset.from_list(suite.rows())
    args = AsyncGRPOConfig(
        output_dir=str(out),
        optim="sgd",
        learning_rate=0.25,
        dtype="float32",
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_steps=1,
        token_budget=-1,
        max_staleness=0,
        weight_sync_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    with pytest.MonkeyPatch.context() as patch, engine, tiny_trl.async_grpo_on_cpu():
        # It asks for the package, and speaks to the server alone.
        patch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
        factory = functools.partial(
            openenv.HarborTerminalSessionFactory,
            tasks,
            tokenizer=str(model_dir),
            engine_url=engine.url,
            model="policy",
            max_tokens=MAX_TOKENS,
            max_retries=0,
            **settings,
        )
        worker: Any = TerminalRolloutWorker(
            harness_session_factory=factory,
            model_name=str(model_dir),
            dataset=rows,
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            num_generations=GROUP,
            max_inflight_tasks=GROUP,
            queue_maxsize=GROUP,
        )
        trainer = AsyncGRPOTrainer(
            model=str(model_dir),
            args=args,
            train_dataset=rows,
            processing_class=tokenizer,
            rollout_worker=worker,
            weight_transfer=tiny_trl.EngineWeights(engine),
        )
        trainer.train()
    return trainer, engine


@dataclass
class InTurn:
    """Episodes of several sources, one after the other."""

    sources: tuple[Any, ...]
    played: int = 0

    def bind(self, task: Any, seed: int | None) -> Any:
        """Return what makes the next episode's environment."""
        self.played += 1
        return self.sources[self.played % len(self.sources)].bind(task, seed)


def test_a_step_of_local_and_of_served_episodes_is_token_exact(
    suite: TaskSuite, model_dir: Path, tmp_path: Path
) -> None:
    """A process of TRL's worker takes ten seconds to start: one plays both halves of the group."""
    config, task = config_of(suite), str(suite.tasks("train")[0].path)
    with openenv.TerminalServer(ServerConfig(env=config, tasks=(task,), port=0, max_sessions=GROUP)) as server:
        tasks = InTurn((openenv.LocalTasks(suite, config), openenv.ServedTasks(server.url, server.token)))
        trainer, engine = train(tasks, suite, model_dir, tmp_path / "out", max_lost_in_a_row=1)
    (row,) = [row for row in trainer.state.log_history if "ratio" in row]
    assert abs(row["ratio"] - 1) < 1e-3
    assert abs(row["kl"]) < 1e-3
    assert 0 < row["reward"] < 1, "the policy writes all four letters"
    assert row.get("rollout/realign_frac", 0.0) == 0.0
    assert row.get("rollout/drift_tokens_mean", 0.0) == 0.0
    assert engine.versions >= 1


def test_a_training_whose_episodes_are_all_lost_ends(suite: TaskSuite, model_dir: Path, tmp_path: Path) -> None:
    tasks = openenv.LocalTasks(suite, config_of(suite, fail={"start": 1}))
    with pytest.raises(RuntimeError, match="Rollout worker child has failed") as failed:
        train(tasks, suite, model_dir, tmp_path / "out", max_lost_in_a_row=2 * GROUP)
    assert f"{2 * GROUP} episodes in a row were lost" in str(failed.value.__cause__)
