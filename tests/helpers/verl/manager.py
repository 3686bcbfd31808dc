"""verl's own managers on this machine's CPUs: of its LLM servers, with its load balancer and its client, and of its
agent loops, whose workers are actors of Ray's. Only a replica is a double, for verl's own start engines on GPUs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, override

import ray
import torch
from omegaconf import DictConfig
from transformers import AutoConfig, AutoModelForCausalLM
from verl.experimental.agent_loop import AgentLoopManager
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from harbor_gym.types import Sampler
from tests.contract.players.episode import VANISH, Script
from tests.helpers.sandboxes.fake_episodes import message
from tests.helpers.verl.workers import SamplerServers

VANISHING = Script((message(f"{VANISH}\n"),))


def load_model(directory: Path | str) -> Any:
    """Return the small model of a directory of :func:`write_model`; the first call makes its weights."""
    if not (Path(directory) / "model.safetensors").exists():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).save_pretrained(directory)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def score(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of each token but the first, of shape ``(len(tokens) - 1,)``."""
    given = torch.tensor([list(tokens)])
    logprobs = torch.log_softmax(model(given).logits[0, :-1], dim=-1)
    return logprobs.gather(1, given[0, 1:, None]).squeeze(1)


class Server:
    """A stand-in for an actor of verl's ``vLLMHttpServer``.

    Args:
        samplers: The sampler of each row of the batch, in order; the last answers all further rows.
        lost: How many attempts of a row lose their sandbox.
        model_dir: The model whose log-probabilities the answers have; None keeps the sampler's.
    """

    def __init__(self, samplers: Sequence[Sampler], lost: Mapping[int, int], model_dir: str | None) -> None:
        self._rows = [SamplerServers(sampler) for sampler in samplers]
        self._vanishing, self._lost = SamplerServers(VANISHING), dict(lost)
        self._model = None if model_dir is None else load_model(model_dir)

    async def generate(self, prompt_ids: list[int], request_id: str, priority: int = 0, **request: Any) -> TokenOutput:
        servers = self._rows[min(priority, len(self._rows) - 1)]
        if self._lost.get(priority):
            self._lost[priority] -= 1
            servers = self._vanishing
        output = await servers.generate(request_id, prompt_ids=prompt_ids, **request)
        if self._model is not None:
            with torch.no_grad():
                logprobs = score(self._model, [*prompt_ids, *output.token_ids])[len(prompt_ids) - 1 :]
            output = output.model_copy(update={"log_probs": logprobs.tolist()})
        return output

    def requests(self) -> int:
        """Return how many requests were answered."""
        return sum(servers.requests.total() for servers in (*self._rows, self._vanishing))


def start(
    config: DictConfig,
    samplers: Sequence[Sampler],
    *,
    lost: Mapping[int, int] | None = None,
    model_dir: str | None = None,
) -> tuple[Any, list[Any]]:
    """Start verl's managers as its trainer does; return the one of agent loops, and the servers.

    Args:
        config: verl's. There is a server for each of ``rollout.n_gpus_per_node``.
        samplers: As :class:`Server` takes them.
        lost: As :class:`Server` takes it.
        model_dir: As :class:`Server` takes it.
    """

    class Replica(RolloutReplica):
        @override
        async def init_standalone(self) -> None:  # verl's own first reserves GPUs of Ray's
            await self.launch_servers()

        @override
        async def launch_servers(self) -> None:
            server: Any = ray.remote(Server)
            self._server_handle = server.options(num_cpus=0).remote(list(samplers), dict(lost or {}), model_dir)
            self._server_address = f"double:{self.replica_rank}"
            self.servers = [self._server_handle]

    class Servers(LLMServerManager):
        rollout_replica_class = Replica

    servers: Any = Servers.create(config)
    return AgentLoopManager.create(config, servers.get_client()), servers.server_handles
