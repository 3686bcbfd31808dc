"""Episodes through verifiers' own environment and clients, against a token-id server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harbor_gym import EndReason
from harbor_gym.types import TokenSequence
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.sequences import of_mask

PLUGIN = "harbor-gym-verifiers"
RENDERER = {"name": "qwen3", "thinking_retention": "all"}
"""verifiers' renderer of a chat; retention ``all`` keeps all sampled tokens in the prompt."""


def client_config(kind: str, server: EngineDouble, model_dir: Path | str) -> dict[str, Any]:
    """Return the settings of a client: ``train`` asks for token ids, ``eval`` for chats."""
    common = {"type": kind, "base_url": server.base_url, "api_key_var": "NO_SUCH_KEY"}
    if kind == "eval":
        return common
    return {**common, "renderer": RENDERER, "renderer_model_name": str(model_dir)}


def env_config(
    tasks: Sequence[Path | str], harness: Mapping[str, Any], agent: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of an environment with our taskset and harness."""
    return {
        "taskset": {"id": PLUGIN, "tasks": [str(task) for task in tasks]},
        "agent": {"harness": {"id": PLUGIN, **harness}, **(agent or {})},
    }


async def run_episodes(
    server: EngineDouble,
    env: Mapping[str, Any],
    *,
    model_dir: Path | str,
    client: str = "train",
    episodes: int = 1,
    at_once: int = 100,
    sampling: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run each task's episodes side by side, with verifiers' retries, and return them."""
    import asyncio

    import verifiers.v1 as vf
    from pydantic import TypeAdapter
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import ClientConfig
    from verifiers.v1.types import SamplingConfig
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    async with serve(server):
        config: Any = TypeAdapter(ClientConfig).validate_python(client_config(client, server, model_dir))
        context = ModelContext(client=config, model=server.model, sampling=SamplingConfig(**(sampling or {})))
        loaded: vf.Env = load_environment(resolve_env_config(dict(env)))
        async with loaded.serving():
            slots = [slot for task in loaded.taskset for slot in loaded.slots(task, episodes)]
            gate = asyncio.Semaphore(at_once)
            return await asyncio.gather(*(loaded.run_slot(slot, context, gate) for slot in slots))


def end_reason_of(trace: Any) -> EndReason:
    """Return why a verified trace ended, after checking that verifiers has its own word for a spent budget."""
    end_reason = EndReason(trace.info["harbor_gym"]["end_reason"])
    words = {"max_turns": EndReason.MAX_TURNS, "max_total_tokens": EndReason.CONTEXT_OVERFLOW}
    words |= {"max_output_tokens": EndReason.MAX_TOKENS, "agent_timeout": EndReason.TIME_LIMIT}
    assert words.get(trace.stop_condition, end_reason) is end_reason
    assert trace.is_truncated is (end_reason.is_truncation and end_reason is not EndReason.TIME_LIMIT)
    return end_reason


def sequence_of(trace: Any) -> TokenSequence:
    """Return a trace's only branch as a training sequence.

    Its first prompt ends where the first sampled token stands.
    """
    (branch,) = trace.branches
    first = branch.sampled_mask.index(True)
    mask = [int(is_sampled) for is_sampled in branch.sampled_mask]
    return of_mask(branch.token_ids[:first], branch.token_ids[first:], mask[first:], branch.logprobs[first:])
