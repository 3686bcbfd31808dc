"""SkyRL's own loops around our generator and environment, without a GPU."""

import asyncio
import multiprocessing.resource_tracker
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest

if find_spec("skyrl") is None:
    pytest.skip('pip install "harbor-gym[skyrl]"', allow_module_level=True)

from harbor_gym.adapters import skyrl
from harbor_gym.testing import FakeEnvironment, write_tiny_task
from harbor_gym.types import Sample
from tests.helpers import skyrl as sky
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message

pytestmark = [
    pytest.mark.usefixtures("resource_trackers", "nothing_left"),
    # torchdata calls it at each start of a loader.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

SOLVED = {"solved_when": {"/srv/answer": "done"}}
SOLVE = message("echo done > /srv/answer\n")
GROUPS, SIZE, STEPS = 2, 4, 3


class SomeAreLost(FakeEnvironment):
    """A fake of which every fifth one does not start."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SomeAreLost.made += 1
        super().__init__(*args, **kwargs, fail={"start": 1} if SomeAreLost.made % 5 == 0 else {})


class Tracker:
    """Keeps a trainer's logged values."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, metrics: dict[str, Any], step: int, commit: bool = False) -> None:
        self.logged.append(dict(metrics))

    def finish(self) -> None: ...


async def solve_or_not(prompt: Sequence[int]) -> Sample:
    tokenizer = byte_level_tokenizer()
    turn = tokenizer.decode(list(prompt)).count("<|im_start|>assistant") - 1
    text = random.choice([SOLVE, message("true\n")]) if turn == 0 else COMPLETE
    await asyncio.sleep(0)
    tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return Sample(tokens, [-0.5] * len(tokens))


@pytest.fixture(scope="module")
def resource_trackers() -> None:
    """Start the threads that loaders of datasets and of torch start once for the life of the process."""
    import multiprocess.resource_tracker

    multiprocess.resource_tracker.ensure_running()
    multiprocessing.resource_tracker.ensure_running()


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in ("alpha", "beta"):
        (write_tiny_task(tmp_path / "suite" / name) / "instruction.md").write_text(f"Do {name}.\n")
    return tmp_path / "suite"


def make_config(suite: Path, out: Path, **harbor: Any) -> Any:
    flags: dict[str, Any] = {
        **{f"harbor.{name}": value for name, value in harbor.items()},
        "harbor.tasks": [str(suite)],
        "harbor.env": {"confirm_task_complete": False, "sandbox": f"{__name__}:SomeAreLost", "sandbox_options": SOLVED},
        "generator.step_wise_trajectories": True,
        "generator.merge_stepwise_output": True,
        "generator.n_samples_per_prompt": SIZE,
        "generator.max_turns": 4,
        "generator.max_input_length": 20_000,
        "generator.sampling_params.max_generate_length": 500,
        "trainer.export_path": str(out),
        "trainer.epochs": 1,
        "trainer.train_batch_size": GROUPS,
        "trainer.policy_mini_batch_size": GROUPS,
        "trainer.eval_interval": -1,
        "trainer.ckpt_interval": -1,
        "trainer.hf_save_interval": -1,
        "trainer.resume_mode": "none",
        "trainer.placement.colocate_all": False,
        "trainer.algorithm.policy_loss_type": "rollout_is",
        "trainer.fully_async.enabled": True,
        "trainer.fully_async.simulate_training": True,
        "trainer.fully_async.simulate_training_step_seconds": 0.0,
        "trainer.fully_async.num_parallel_generation_workers": GROUPS,
        "trainer.fully_async.max_staleness_steps": 1,
        "data.dataloader.num_workers": 0,
        "generator.inference_engine.enable_ray_prometheus_stats": False,
    }
    return skyrl.HarborTrainConfig.from_cli_overrides(flags)


async def test_the_fully_asynchronous_loop_runs_on_our_generator(suite: Path, tmp_path: Path) -> None:
    from harbor_gym.adapters.skyrl.experiment import SimulatedTrainer

    class RecordingSim(SimulatedTrainer):
        """SkyRL's simulated trainer; computes the advantages that a real one would."""

        batches: ClassVar[list[Any]] = []

        async def _run_training(self, training_input: Any) -> Any:
            training_input["values"] = None
            self.batches.append(self.compute_advantages_and_returns(training_input))
            return await super()._run_training(training_input)

    SomeAreLost.made = 0
    cfg = make_config(
        suite,
        tmp_path,
        max_retries=0,
        max_lost_calls=9,
    )
    experiment: Any = object.__new__(skyrl.HarborExp)  # its constructor downloads a model's tokenizer
    experiment.cfg, experiment.tokenizer = cfg, sky.chat_tokenizer()
    cfg.trainer.train_batch_size = GROUPS * STEPS
    dataset = await asyncio.to_thread(experiment.get_train_dataset)
    cfg.trainer.train_batch_size = GROUPS
    assert isinstance(dataset, sky.PromptDataset)
    assert len(dataset) == GROUPS * STEPS
    engine, tracker = sky.SamplerEngine(solve_or_not), Tracker()
    trainer: Any = RecordingSim(
        cfg=cfg,
        tracker=tracker,  # pyright: ignore[reportArgumentType]  # it has the methods that a trainer calls
        tokenizer=experiment.tokenizer,
        train_dataset=dataset,
        inference_engine_client=engine,
        generator=experiment.get_generator(cfg, experiment.tokenizer, engine),
    )
    await trainer.train()
    assert len(trainer.batches) == STEPS
    assert engine.weight_version == STEPS + 1
    assert SomeAreLost.made == GROUPS * STEPS * SIZE
    lost = sum(row.get("harbor/lost", 0) for row in tracker.logged)
    assert lost == GROUPS * STEPS * SIZE // 5
    for batch in trainer.batches:
        masked = batch["advantages"] * batch["loss_mask"]
        is_lost = batch["loss_mask"].sum(dim=-1) == 0
        assert masked[is_lost].abs().sum() == 0
        assert masked.isfinite().all()
    assert any(batch["advantages"].abs().sum() > 0 for batch in trainer.batches)
    assert set(engine.finished.values()) == {1}
    assert len(engine.finished) == GROUPS * STEPS * SIZE
