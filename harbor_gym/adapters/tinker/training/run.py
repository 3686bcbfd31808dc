"""Open the training service, then run the cookbook's loop."""

import random
import warnings
from collections.abc import Callable

from harbor_gym._runtime.console.progress import ShowBar, show_no_bar
from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.adapters.tinker.training.service import OpenService


async def train(
    run: TrainRun, open_service: OpenService, *, show: Callable[[str], None], bar: ShowBar = show_no_bar
) -> None:
    """Train to the last batch; if the run is evaluated, evaluate the result and export the best checkpoint.

    Args:
        run: The result of :func:`harbor_gym.adapters.tinker.training.preparation.prepare`; its folder exists.
        open_service: Opens the service that samples and trains.
        show: Takes each line about the run's progress.
        bar: Takes the number of finished batches.

    Raises:
        HarborGymError: The infrastructure failed in a way that retries did not cure, or a task can't be used.
    """
    random.seed(run.config.seed)
    # The cookbook calls methods that newer tinker versions deprecate.
    for message in ("DEPRECATED: ", "Using the future as the SamplingClient"):
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
    async with open_service(run) as service:
        from harbor_gym.adapters.tinker.training.loop import run_loop

        await run_loop(run, service, show, bar)
