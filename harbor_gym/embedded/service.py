"""The embedded server as the service of a training run, or of an evaluation."""

import asyncio
import contextlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.console.progress import SLOW_SEC, ShowBar, show_no_bar, ticking
from harbor_gym.adapters.tinker.policies import EvaluatedPolicy
from harbor_gym.adapters.tinker.training.config import Backend, TrainConfig
from harbor_gym.adapters.tinker.training.plan import TrainRun
from harbor_gym.adapters.tinker.training.service import ModelService, cancelled_with, tinker_service
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.embedded import PRETRAINED_DEMONSTRATIONS, ensure_policy, models
from harbor_gym.embedded.demonstrator import load_script, require_written
from harbor_gym.embedded.interpreter import server_python
from harbor_gym.embedded.policy import build_tokenizer, training_stack
from harbor_gym.embedded.server import TrainingServer, export_adapter
from harbor_gym.errors import MissingDependencyError

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.checkpoint_utils import CheckpointRecord

type Show = Callable[[str], None]

_LOOP = "harbor_gym.adapters.tinker.training.loop"
"""What trains: the cookbook, the SDK and what they import, ten seconds where nothing is compiled yet."""

_INSTALLED_BY = {
    Backend.TINKER: ("training with the Tinker service", "tinker", ""),
    Backend.LOCAL: ("training with --backend local", "tinker,server", ", then run `harbor-gym server install`"),
}
"""Backend → its use, the extras that it needs, and a further step after their installation."""


@dataclass(frozen=True)
class EmbeddedService:
    """A running embedded server."""

    model_name: str
    base_url: str | None
    state_dir: Path

    async def export(self, checkpoint: "CheckpointRecord", folder: Path) -> None:
        """Write the adapter that the server saved for sampling.

        Raises:
            UsageError: The checkpoint has no weights for sampling.
        """
        await asyncio.to_thread(export_adapter, self.state_dir, checkpoint.sampler_path or "", folder)


def require_backend(backend: Backend) -> None:
    """Check that a backend is installed, without starting or importing it.

    Raises:
        MissingDependencyError: A part of the backend is missing.
    """
    needed = ("tinker", "tinker_cookbook") + (("torch", "transformers") if backend is Backend.LOCAL else ())
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        what, extras, then = _INSTALLED_BY[backend]
        raise MissingDependencyError(
            f'{what} needs {missing[0]}, which is not installed: pip install "harbor-gym[{extras}]"{then}'
        )
    if backend is Backend.LOCAL:
        server_python()


async def require_policy(run: TrainRun) -> None:
    """Check that a run's model can be had and served, if it is to be served here. Nothing is started or written.

    Raises:
        TaskError: The task has no demonstrator that the policy needs, or a malformed one.
        UsageError: The demonstrator does not write the action format, there is no such model or renderer, or the server
            can't train the model.
    """
    config = run.config
    if config.backend is not Backend.LOCAL:
        return
    if config.model_name is None or demonstrations_of(config):
        load_script(run.env.task_dir)
        if isinstance(run.env, TerminalEnvConfig):
            require_written(run.env.action_format)
    await asyncio.to_thread(_require_model, config)


def demonstrations_of(config: TrainConfig) -> int:
    """Return the number of demonstrations on which a run's named model is fine-tuned."""
    if config.demonstrations is not None:
        return config.demonstrations
    return PRETRAINED_DEMONSTRATIONS if config.model_name in models.PRETRAINED else 0


def _require_model(config: TrainConfig) -> None:
    with training_stack():
        from harbor_gym.adapters.tinker.codec import renderer_of
        from harbor_gym.adapters.tinker.sampling import codec_for
    if config.model_name is None:
        renderer_of(config.renderer_name, build_tokenizer(["any text"]))
        return
    models.require_model(
        config.model_name,
        max_context_tokens=config.max_context_tokens,
        is_fine_tuned=demonstrations_of(config) > 0,
    )
    if (folder := models.model_dir(config.model_name)) is not None:
        codec_for(config.renderer_name, str(folder))


def open_service(run: TrainRun, show: Show, bar: ShowBar) -> contextlib.AbstractAsyncContextManager[ModelService]:
    """Return a run's service for a block: the Tinker service, or a server on this machine.

    Args:
        run: The run; its folder exists.
        show: Takes each line about the server's start.
        bar: Takes the progress of the server's preparation and start.
    """
    return tinker_service(run) if run.config.backend is Backend.TINKER else embedded_service(run, show, bar)


@contextlib.asynccontextmanager
async def embedded_service(run: TrainRun, show: Show, bar: ShowBar = show_no_bar) -> AsyncGenerator[ModelService]:
    """Yield a server for the run's model, or for the built-in policy if the run names none.

    Raises:
        TrainingServerError: The server did not start, or ended by itself, which cancels the block.
    """
    model_dir = await _model_dir(run, show, bar)
    state_dir = run.log_path / "server"
    server = TrainingServer(
        model_dir,
        state_dir,
        max_lora_rank=run.config.lora_rank,
        stall_timeout_sec=run.config.server_timeout_sec,
        python=server_python(),
        device=run.config.device,
    )
    async with contextlib.AsyncExitStack() as stack:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read at an import
        # The server's start is imports, too: a second processor does these meanwhile.
        importing = asyncio.get_running_loop().run_in_executor(None, importlib.import_module, _LOOP)
        await stack.enter_async_context(server)
        os.environ.update(server.client_environment())
        with ticking("importing the cookbook", delay_sec=SLOW_SEC):
            await importing
        async with cancelled_with(server.monitor()):
            yield EmbeddedService(str(model_dir), server.base_url, state_dir)


@contextlib.asynccontextmanager
async def sampling_client(policy: EvaluatedPolicy, show: Show) -> AsyncGenerator["tinker.SamplingClient"]:
    """Yield a client of the policy; if the policy's model is on this machine, start a server for it."""
    async with contextlib.AsyncExitStack() as stack:
        base_url = policy.base_url
        if policy.is_served_here:
            state = policy.server_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = TrainingServer(
                Path(policy.model_name), state, max_lora_rank=policy.max_lora_rank, python=server_python()
            )
            await stack.enter_async_context(server)
            os.environ.update(server.client_environment())
            base_url = server.base_url
        import tinker  # it reads the variables that the server has set

        service = tinker.ServiceClient(base_url=base_url)
        if policy.is_served_here and policy.checkpoint is not None:
            # A new server has no adapter: load the training state, and save it for sampling.
            trainer = await service.create_training_client_from_state(policy.checkpoint)
            yield await trainer.save_weights_and_get_sampling_client()
        else:
            base = None if policy.checkpoint else policy.model_name
            yield await service.create_sampling_client(model_path=policy.checkpoint, base_model=base)


async def _model_dir(run: TrainRun, show: Show, bar: ShowBar) -> Path:
    config, base = run.config, None
    if config.model_name is not None:
        base = await models.ensure_model(config.model_name)
        await asyncio.to_thread(_require_model, config)  # what was fetched only now has not been checked
        if not demonstrations_of(config):
            return base

    def show_preparation(phase: str, done: int, total: int, loss: float | None) -> None:
        bar(phase, done, total, f"loss {loss:.2f}" if loss is not None else "")

    from harbor_gym.adapters.harbor.agents import harbors_agent

    if isinstance(run.env, AgentEpisodeConfig):
        player: dict[str, Any] = {"agent": harbors_agent(run.env)}
    else:
        player = {"action_format": run.env.action_format}
    show("preparing the embedded policy (once; it is cached)")
    return await ensure_policy(
        run.env.task_dir,
        sandbox=run.env.sandbox,
        renderer_name=config.renderer_name,
        **player,
        seed=config.seed,
        base=base,
        demonstrations=demonstrations_of(config) or None,
        device=config.device,
        progress=show_preparation,
    )
