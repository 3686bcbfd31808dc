"""Datasets for the cookbook's loop, and an in-memory service that it trains with."""

from types import SimpleNamespace
from typing import Any

TURNS = [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6, 7], [8]), ([1, 9], [10, 11]), ([1, 9, 10, 11, 12], [13])]
"""Two conversations: the second begins with the third turn."""


def trajectory() -> Any:
    """Return an episode of ``TURNS``."""
    import tinker
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.types import Trajectory, Transition

    transitions = [
        Transition(
            ob=tinker.ModelInput.from_ints(prompt),
            ac=TokensWithLogprobs(tokens=sampled, maybe_logprobs=[-float(token) for token in sampled]),
            reward=0.0,
            episode_done=number == len(TURNS),
        )
        for number, (prompt, sampled) in enumerate(TURNS, start=1)
    ]
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


class Service:
    """A training client that records its requests; its log-probabilities are the negated targets."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    def forward(self, data: list[Any], loss_fn: str) -> Any:
        return self._answer("forward", data)

    async def forward_backward_async(self, data: list[Any], loss_fn: str, loss_fn_config: Any = None) -> Any:
        return self._answer("forward_backward", data)

    async def save_weights_and_get_sampling_client_async(self) -> str:
        return "client"

    async def optim_step_async(self, parameters: Any) -> Any:
        return self._answer("optim_step", [])

    def _answer(self, name: str, data: list[Any]) -> Any:
        import tinker

        self.calls.append((name, data))
        targets = [datum.loss_fn_inputs["target_tokens"].to_torch() for datum in data]
        outputs = [{"logprobs": tinker.TensorData.from_torch(-item.float())} for item in targets]

        async def result_async() -> Any:
            return SimpleNamespace(loss_fn_outputs=outputs, metrics=None)

        return SimpleNamespace(result_async=result_async)
