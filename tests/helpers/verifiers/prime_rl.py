"""Prime-RL's orchestrator without its GPU parts: its env server, TrainEnvs, TrainSink, algorithm and packer.

Its own dispatcher, trainer and inference are missing: groups are dispatched here as its dispatcher stamps them.
"""

import asyncio
import contextlib
import json
import os
import sys
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.helpers.engine_double import EngineDouble
from tests.helpers.paths import ROOT
from tests.helpers.verifiers.episodes import client_config

SOURCE = "harbor"
_START_TIMEOUT_SEC = 600
_LISTENS = "EnvServerPool up"


def read_older_branches() -> None:
    """Let a Prime-RL that was written for an older verifiers read a field that verifiers 0.4 has dropped."""
    from verifiers.v1.trace import Branch

    if not hasattr(Branch, "multi_modal_data"):
        Branch.multi_modal_data = None


def orchestrator_config(path: Path, port: int, **changes: Any) -> Any:
    """Return the orchestrator's part of a recipe with fields replaced; ``env`` has those of its environment.

    Its env server listens on a port of loopback.
    """
    import tomllib

    from prime_rl.configs.orchestrator import OrchestratorConfig

    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    shared = {name: settings[name] for name in ("model", "seq_len")}
    orchestrator: dict[str, Any] = {**settings["orchestrator"], **shared}
    (source,) = orchestrator["train"]["source"]
    for name, value in changes.pop("env", {}).items():
        source["env"][name] |= value
    return OrchestratorConfig.model_validate({**orchestrator, "env_server_base_port": port, **changes})


@contextlib.asynccontextmanager
async def env_server(config: Any, tmp_path: Path) -> AsyncGenerator[str]:
    """Run the env server of a configuration's only source as Prime-RL's launcher does; yield its address.

    Raises:
        AssertionError: It exited instead of listening.
    """
    from prime_rl.utils.config import dump_resolved_config

    address = config.env_addresses["train", SOURCE]
    source = dump_resolved_config(config.train.source[0])
    path = tmp_path / "env_server.json"
    settings = {"env": source["env"], "serve": {**source["serve"], "address": address}, "log": {"level": "info"}}
    path.write_text(json.dumps(settings))
    code = "from prime_rl.entrypoints.env_server import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    log_path = tmp_path / "env_server.log"
    with log_path.open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, "@", path), stdout=log, stderr=log, env=environment
        )
        try:
            while _LISTENS not in await asyncio.to_thread(log_path.read_text):
                assert process.returncode is None, log_path.read_text()[-2000:]
                await asyncio.sleep(0.2)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


@dataclass
class Orchestrator:
    """Dispatches groups and packs their results into batches."""

    config: Any
    server: EngineDouble
    model_dir: Path
    step: int = 1
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Of every episode so far; None of one that was lost."""

    traces: list[Any] = field(default_factory=list[Any])

    async def start(self) -> None:
        """Connect to the env server and load the tasks."""
        from prime_rl.orchestrator.envs import TrainEnvs
        from prime_rl.orchestrator.packing import BatchPacker
        from prime_rl.orchestrator.train_sink import TrainSink
        from prime_rl.orchestrator.types import Progress

        read_older_branches()
        self._envs = TrainEnvs(
            self.config.train.source,
            self.config.env_addresses,
            policy_pool=SimpleNamespace(),
            renderer_config=self.config.renderer,
        )
        async with asyncio.timeout(_START_TIMEOUT_SEC):
            await self._envs.start()
        self._env = self._envs.get(SOURCE)
        self.tasks = list(self._env.tasks)
        self._progress = Progress()
        self._packer = BatchPacker(self.config)
        self._sink = TrainSink(
            self.config,
            tokenizer=None,
            train_envs=self._envs,
            mm_token_type_ids_mapping=None,
            progress=self._progress,
            batch_size=self.config.batch_size,
            token_batch_size=None,
        )

    async def run_group(self, task: Any) -> Any:
        """Run a group of one task side by side; return a batch if one is complete, else None."""
        import verifiers.v1 as vf
        from pydantic import TypeAdapter
        from verifiers.v1.configs.client import ClientConfig

        client: Any = TypeAdapter(ClientConfig).validate_python(client_config("train", self.server, self.model_dir))
        group_id, data = uuid.uuid4().hex, task.data.model_dump(mode="json")
        runs = [self._env.run(client, self.server.model, None, data) for _ in range(self.config.group_size)]
        batch = None
        for episode in await asyncio.gather(*runs):
            episode.env.name = SOURCE
            episode.group = vf.GroupInfo(id=group_id)
            policy = vf.PolicySpan(start=self.step - 1, end=self.step - 1)
            episode.record_run(vf.TrainRunInfo(id="run", work=vf.TrainWorkInfo(step=self.step, policy=policy)))
            (trace,) = episode.traces
            self.traces.append(trace)
            self.rewards.append(trace.reward if trace.ok else None)
            batch = await self._sink.add(episode) or batch
        return batch

    def waiting(self) -> dict[str, list[Any]]:
        """Return the samples that no batch holds yet, by trace."""
        return dict(self._sink.pending_batch)

    async def close(self) -> None:
        """Disconnect from the env server."""
        await self._env.env_client.close()

    def pack(self, batch: Any) -> list[Any]:
        """Return a batch's micro batches, of the only trainer that there is."""
        (batches,) = self._packer.pack(batch.samples)
        return batches

    def advance(self) -> None:
        """Go on to the next step."""
        self.step += 1
        self._progress.step = self.step
