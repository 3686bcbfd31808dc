"""Routed experts, from an engine whose routes tell token and request, to the rows that SkyRL's trainers replay."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, override

import numpy as np
import pytest

if find_spec("skyrl") is None:
    pytest.skip('pip install "harbor-gym[skyrl]"', allow_module_level=True)

from harbor_gym.errors import UsageError
from harbor_gym.testing import write_tiny_task
from tests.contract.players.episode import Script
from tests.helpers import skyrl as sky
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED = {"solved_when": {"/srv/answer": "done"}}
ANSWERS = (message("pwd\n"), message("echo done > /srv/answer\n"), COMPLETE)
LAYERS, CHOICES = 2, 3


def routing_engine(change: Callable[[Any, str], Any] = lambda routes, session: routes) -> Any:
    """Return an engine whose first layer routes by the token's place, the second by the session's request's number."""

    class RoutingEngine(sky.SamplerEngine):
        @override
        async def generate(self, input_batch: Any, model: str | None = None) -> Any:
            output = await super().generate(input_batch, model)
            starts = input_batch.get("routed_experts_prompt_starts")
            if starts is not None:
                (prompt,), (start,), (sampled,) = input_batch["prompt_token_ids"], starts, output["response_ids"]
                places, (session,) = np.arange(start, len(prompt) + len(sampled) - 1), input_batch["session_ids"]
                routes = np.zeros((len(places), LAYERS, CHOICES), dtype=np.uint16)
                routes[:, 0] = places[:, None] + np.arange(CHOICES)
                routes[:, 1] = self.sessions[session]
                output["rollout_expert_indices"] = [change(routes, session)]
            return output

    return RoutingEngine(Script(ANSWERS))


def generator(engine: Any, env: dict[str, Any] | None = None, *, max_retries: int = 1, **settings: Any) -> Any:
    from skyrl.train.config import InferenceEngineConfig

    own = env or {"confirm_task_complete": False, "sandbox_options": SOLVED}
    routing = InferenceEngineConfig(enable_return_routed_experts=True)
    return sky.make_generator(engine, {"env": own, "max_retries": max_retries}, inference_engine=routing, **settings)


async def test_each_token_keeps_the_route_with_which_it_was_sampled(tmp_path: Path) -> None:
    batch, _ = sky.make_input(write_tiny_task(tmp_path / "task"), groups=1, size=2)
    output: Any = await generator(routing_engine()).generate(batch)
    output.pop("rollout_metrics")
    sky.validate_generator_output(2, output, step_wise=False)
    names = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_expert_indices")
    for prompt, response, mask, routes in zip(*(output[name] for name in names), strict=True):
        count = len(prompt) + len(response)
        assert (routes.shape, routes.dtype) == ((count - 1, LAYERS, CHOICES), np.int16)
        assert (routes[:, 0] == np.arange(count - 1)[:, None] + np.arange(CHOICES)).all()
        turn, before = 0, 0
        for place, sampled in enumerate(mask, start=len(prompt)):
            turn += sampled > before  # a token is sampled by the pass over the one before it, of the same request
            before = sampled
            assert not sampled or routes[place - 1, 1, 0] == turn
        assert turn == len(ANSWERS)


async def test_an_evaluation_asks_for_no_routes(tmp_path: Path) -> None:
    batch, _ = sky.make_input(write_tiny_task(tmp_path / "task"), groups=1, size=1)
    from skyrl.train.generators.base import TRAINING_PHASE_EVAL, BatchMetadata

    batch["batch_metadata"] = BatchMetadata(global_step=0, training_phase=TRAINING_PHASE_EVAL)
    output = await generator(routing_engine()).generate(batch)
    assert output["rollout_expert_indices"] is None


@pytest.mark.parametrize("what", ["few", "flat", "none"])
async def test_an_answer_without_its_routes_is_a_lost_episode(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(routes: Any, session: str) -> Any:
        whole = not session.endswith("_1")  # the second of the group
        return routes if whole else {"few": routes[1:], "flat": routes[:, 0], "none": None}[what]

    monkeypatch.setattr("harbor_gym.adapters.skyrl.generator._MAX_ATTEMPTS", 1)
    batch, _ = sky.make_input(write_tiny_task(tmp_path / "task"), groups=1, size=2)
    output: Any = await generator(routing_engine(change), max_retries=0).generate(batch)
    assert output["stop_reasons"] == ["stop", "error"]
    output.pop("rollout_metrics")
    sky.validate_generator_output(2, output, step_wise=False)
    lost = output["rollout_expert_indices"][1]
    assert (lost.shape, lost[0, 0].tolist()) == ((1, LAYERS, CHOICES), [0, 1, 2])


@pytest.mark.parametrize(
    ("settings", "own"), [({"step_wise_trajectories": True}, {}), ({}, {"agent": "terminus-2"})], ids=["rows", "agent"]
)
def test_what_has_no_place_for_routes_is_refused(settings: dict[str, Any], own: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="enable_return_routed_experts is for our own loop with a row per episode"):
        generator(routing_engine(), own, **settings)
