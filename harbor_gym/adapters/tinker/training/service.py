"""The training service of a run: the Tinker service, or a server with the same API."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.errors import UsageError
from harbor_gym.samplers.endpoints import watch_endpoint

if TYPE_CHECKING:
    from tinker_cookbook.checkpoint_utils import CheckpointRecord


class ModelService(Protocol):
    """A running service for the run's base model."""

    @property
    def model_name(self) -> str:
        """The base model: a name, or a directory."""
        ...

    @property
    def base_url(self) -> str | None:
        """The service's address; None is the Tinker service."""
        ...

    async def export(self, checkpoint: "CheckpointRecord", folder: Path) -> None:
        """Write a checkpoint's adapter into a new folder.

        Raises:
            UsageError: The service can't provide the adapter.
        """
        ...


@dataclass(frozen=True)
class TinkerService:
    """The Tinker service, or an external server at ``base_url``."""

    model_name: str
    base_url: str | None

    async def export(self, checkpoint: "CheckpointRecord", folder: Path) -> None:
        """Download the training weights.

        Raises:
            UsageError: The download failed.
        """
        from tinker_cookbook import weights
        from tinker_cookbook.exceptions import WeightsDownloadError

        path = checkpoint.state_path or ""
        try:
            await asyncio.to_thread(weights.download, tinker_path=path, output_dir=str(folder), base_url=self.base_url)
        except WeightsDownloadError as exc:
            raise UsageError(str(exc)) from exc


@contextlib.asynccontextmanager
async def tinker_service(run: TrainRun) -> AsyncGenerator[ModelService]:
    """Yield the Tinker service of a run, without starting anything.

    Raises:
        ServiceLostError: The server at ``base_url`` stopped answering, which cancels the block.
    """
    assert run.config.model_name is not None, "a prepared run of this backend names its model"
    service = TinkerService(run.config.model_name, run.config.base_url)
    if service.base_url is None:
        yield service
        return
    async with cancelled_with(watch_endpoint(service.base_url)):
        yield service


@contextlib.asynccontextmanager
async def cancelled_with(watch: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Run the block until ``watch`` fails; then cancel the block and raise that failure."""
    block = asyncio.current_task()
    assert block is not None
    watcher = asyncio.create_task(watch)
    watcher.add_done_callback(lambda task: task.cancelled() or task.exception() is None or block.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if watcher.done() and not watcher.cancelled() and (error := watcher.exception()) is not None:
            block.uncancel()
            raise error from None
        raise
    finally:
        watcher.cancel()
        await asyncio.wait((watcher,))
