"""The weights of a run: the initial ones, the last evaluation, and the export of the best."""

import asyncio
import shutil
from collections.abc import Callable

import tinker
from tinker_cookbook.checkpoint_utils import get_last_checkpoint, load_checkpoints_file

from harbor_gym import report
from harbor_gym.adapters.tinker.evaluator import HarborEvaluator
from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.adapters.tinker.training.service import ModelService
from harbor_gym.errors import UsageError
from harbor_gym.evaluation import read_best, read_evaluations

START_TTL_SEC = 86_400
"""How long the service keeps a run's initial weights; a run that resumes without a checkpoint makes them again."""


async def first_weights(run: TrainRun, service: ModelService) -> str | None:
    """Return the address of the initial weights: the configured ones, or a new adapter with the run's seed.

    For a run that resumes, the records after its last checkpoint are removed, and the loop loads that checkpoint.
    """
    config = run.config
    last = get_last_checkpoint(str(run.log_path))
    report.forget_batches(run.log_path, first=last.batch or 0 if last is not None else 0)
    if config.load_checkpoint_path is not None or last is not None:
        return config.load_checkpoint_path
    client = tinker.ServiceClient(base_url=service.base_url)
    trainer = await client.create_lora_training_client(service.model_name, rank=config.lora_rank, seed=config.seed)
    return (await trainer.save_state("start", ttl_seconds=START_TTL_SEC)).path


async def evaluate_last(run: TrainRun, service: ModelService, evaluator: HarborEvaluator) -> None:
    """Evaluate the weights after the last batch, which the loop does not: it evaluates before each batch."""
    last = get_last_checkpoint(str(run.log_path))
    if last is None or last.state_path is None or last.batch is None:
        raise AssertionError("the loop saves its last batch")
    if any(item.batch == last.batch for item in read_evaluations(run.log_path)):
        return
    client = tinker.ServiceClient(base_url=service.base_url)
    trainer = await client.create_training_client_from_state(last.state_path)
    sampler = await trainer.save_weights_and_get_sampling_client()
    await evaluator.evaluate(sampler, batch=last.batch, checkpoint=last.name)


async def export_best(run: TrainRun, service: ModelService, show: Callable[[str], None]) -> None:
    """Show the best checkpoint, and write its adapter into the run's folder."""
    best = read_best(run.log_path)
    show(f"best: checkpoint {best.checkpoint}, after batch {best.batch}, reward {best.reward:.2f}")
    saved = {item.name: item for item in load_checkpoints_file(str(run.log_path))}
    if (checkpoint := saved.get(best.checkpoint)) is None:
        return  # the initial weights
    folder = run.log_path / "best"
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    try:
        await service.export(checkpoint, folder)
    except UsageError as exc:
        show(f"its weights could not be exported: {exc}")
    else:
        show(f"its weights: {folder}")
