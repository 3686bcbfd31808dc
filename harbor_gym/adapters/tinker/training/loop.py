"""Run the cookbook's loop on Harbor tasks, with progress reports."""

import asyncio
import contextlib
import logging
import math
import random
import warnings
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from typing import Any

from tinker_cookbook.rl import train as loop

from harbor_gym import report
from harbor_gym._runtime.console.progress import ShowBar
from harbor_gym.adapters.tinker.branching import advantages_by_family
from harbor_gym.adapters.tinker.dataset import worker_stock
from harbor_gym.adapters.tinker.evaluator import HarborEvaluator
from harbor_gym.adapters.tinker.executors import rollout_executor
from harbor_gym.adapters.tinker.strategy import RetryThenMask
from harbor_gym.adapters.tinker.training.checkpoints import evaluate_last, export_best, first_weights
from harbor_gym.adapters.tinker.training.monitor import monitored
from harbor_gym.adapters.tinker.training.observation_loss import observation_loss
from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.adapters.tinker.training.service import ModelService, cancelled_with
from harbor_gym.adapters.tinker.training.staleness import token_staleness
from harbor_gym.pool import close_shared_pools

_FAULT_POLL_SEC = 1.0


async def run_loop(
    run: TrainRun,
    service: ModelService,
    show: Callable[[str], None],
    bar: ShowBar,
    on_batch: Callable[[Mapping[str, Any], int], None] | None = None,
) -> None:
    """Train to the last batch; if the run is evaluated, evaluate the result and export the best checkpoint.

    Args:
        run: The result of :func:`harbor_gym.adapters.tinker.training.preparation.prepare`; its folder exists.
        service: The service that samples and trains.
        show: Takes each line about the run's progress.
        bar: Takes the number of finished batches.
        on_batch: Takes the record of each new batch, and its number.

    Raises:
        HarborGymError: The infrastructure failed in a way that retries did not cure, or a task can't be used.
        FindingError: An episode has a finding as bad as ``stop_on_finding``.
    """
    random.seed(run.config.seed)
    # The cookbook calls methods that newer tinker versions deprecate.
    for message in ("DEPRECATED: ", "Using the future as the SamplingClient"):
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
    settings = run.config
    strategy = RetryThenMask(settings.max_retries, seed=settings.seed, stragglers=settings.stragglers)
    evaluator = await _evaluator(run, service, strategy)
    start_path = await first_weights(run, service)
    config = _loop_config(run, service, strategy, start_path, evaluator)
    _quiet_after_setup()
    total = run.config.num_batches or run.count_batches()
    async with report.live_progress(run.log_path, total=total, show=show, title=run.title, bar=bar, on_batch=on_batch):
        try:
            async with cancelled_with(_watch_for_fault(strategy)):
                weight = run.config.observation_loss_weight
                with (
                    _workers(run, strategy) as executor,
                    advantages_by_family(),
                    observation_loss(weight),
                    token_staleness(),
                    monitored(show, settings.stop_on_finding),
                ):
                    await loop.main(config, rollout_executor=executor)
                if evaluator is not None:
                    await evaluate_last(run, service, evaluator)
                    await export_best(run, service, show)
        finally:
            await close_shared_pools()


def _quiet_after_setup() -> None:
    """Disable INFO logs until the loop has set up logging, before its first await; then quiet the console.

    The loop's own handler prints colour codes, also to files.
    """
    before = logging.root.manager.disable

    def quiet() -> None:
        logging.disable(before)
        report.quiet_console()

    logging.disable(logging.INFO)
    asyncio.get_running_loop().call_soon(quiet)


async def _watch_for_fault(strategy: RetryThenMask) -> None:
    """Raise the strategy's fault; the streaming loop itself would wait forever for the failed group."""
    while strategy.fault is None:  # noqa: ASYNC110 - the strategy must pickle, so it has no event
        await asyncio.sleep(_FAULT_POLL_SEC)
    raise strategy.fault


@contextlib.contextmanager
def _workers(run: TrainRun, strategy: RetryThenMask) -> Generator[Executor | None]:
    """Yield the executor that plays the groups; None plays them in this process."""
    config = run.config
    if config.rollout_executor is None:
        yield None
        return
    with rollout_executor(
        config.rollout_executor,
        config.rollout_workers,
        strategy,
        output_dir=run.log_path,
        sandboxes_per_worker=config.stragglers.started(config.group_size)
        + worker_stock(config.warm_sandboxes, config.rollout_workers),
        starts_per_sec=config.rollout_starts_per_sec,
    ) as executor:
        yield executor


async def _evaluator(run: TrainRun, service: ModelService, strategy: RetryThenMask) -> HarborEvaluator | None:
    """Return the run's evaluator; None if the run is not evaluated."""
    if not run.config.eval_every:
        return None
    test_set = await run.dataset_builder(service.model_name, run.test_episodes).test_set()
    if test_set is None:
        return None
    return HarborEvaluator(
        test_set,
        max_tokens=run.config.max_tokens,
        run_dir=run.log_path,
        strategy=strategy,
        temperature=run.config.eval_temperature,
        first_checkpoint=run.config.load_checkpoint_path or "base",
    )


def _loop_config(
    run: TrainRun,
    service: ModelService,
    strategy: RetryThenMask,
    start_path: str | None,
    evaluator: HarborEvaluator | None,
) -> loop.Config:
    config = run.config
    return loop.Config(
        model_name=service.model_name,
        base_url=service.base_url,
        renderer_name=config.renderer_name,
        recipe_name="harbor_gym_train",
        dataset_builder=run.dataset_builder(service.model_name),
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        lora_rank=config.lora_rank,
        loss_fn=config.loss_fn,
        kl_penalty_coef=config.kl_penalty_coef,
        kl_reference_config=loop.KLReferenceConfig(
            base_model=config.kl_reference_model or service.model_name,
            load_checkpoint_path=config.kl_reference_checkpoint,
        )
        if config.kl_penalty_coef > 0
        else None,
        load_checkpoint_path=start_path,
        log_path=str(run.log_path),
        # Evaluated weights must be saved, since they may be the best.
        save_every=math.gcd(config.save_every, config.eval_every) if evaluator is not None else config.save_every,
        eval_every=config.eval_every,
        evaluator_builders=[] if evaluator is None else [lambda: evaluator],
        rollout_error_tolerance=strategy,
        remove_constant_reward_groups=config.remove_constant_groups,
        async_config=None
        if config.max_steps_off_policy is None
        else loop.AsyncConfig(
            max_steps_off_policy=config.max_steps_off_policy, groups_per_batch=config.groups_per_batch
        ),
        stream_minibatch_config=None
        if config.stream_minibatches is None
        else loop.StreamMinibatchConfig(
            groups_per_batch=config.groups_per_batch, num_minibatches=config.stream_minibatches
        ),
    )
