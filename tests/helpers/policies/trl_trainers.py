"""A real ``GRPOTrainer`` that samples from a script: everything around the model is TRL's own."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, override

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from harbor_gym.embedded.policy import build_model
from harbor_gym.types import Sampler
from tests.helpers.policies.typists import tokenizer

GROUP = 2
"""Episodes of a batch, the fewest that TRL compares."""


class ScriptedTrainer(GRPOTrainer):
    """Asks a sampler in the place of its model.

    Args:
        sampler: Answers each prompt.
        max_completion_length: Longest message, in tokens.
        output_dir: Where checkpoints would go.
        arguments: Of the trainer: the dataset, the reward function and the rollout function.
    """

    def __init__(self, sampler: Sampler, *, max_completion_length: int, output_dir: str, **arguments: Any) -> None:
        self.sampler = sampler
        args = GRPOConfig(
            output_dir=output_dir,
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            max_completion_length=max_completion_length,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        super().__init__(_model(), args=args, processing_class=tokenizer(), **arguments)

    @override
    def _generate_single_turn(self, prompt_ids: Sequence[Sequence[int]], *rest: Any, **settings: Any) -> Any:
        async def sample_all() -> list[Any]:
            return [await self.sampler(prompt) for prompt in prompt_ids]

        samples = asyncio.run(sample_all())
        return [list(sample.tokens) for sample in samples], [list(sample.logprobs) for sample in samples]

    def score(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the trainer's training data for these rows of its dataset."""
        return self._generate_and_score_completions([dict(row) for row in rows])


@functools.cache
def _model() -> Any:
    model = build_model(tokenizer(), hidden_size=64, layers=1)
    model.generation_config.eos_token_id = tokenizer().eos_token_id
    return model


def logged(trainer: GRPOTrainer) -> dict[str, list[Any]]:
    """Return the columns of the trainer's table of completions, rewards among them."""
    table: Any = trainer._logs  # pyright: ignore[reportPrivateUsage]  # nothing public holds them
    return {**table["rewards"], **table["extra"]}
