"""All requests of a Tinker client, as a program for the test of the embedded server: prints the answers as JSON."""

import asyncio
import json
import math
import sys
from typing import Any

import tinker
from tinker import types


def _datum(prompt: list[int], sampled: list[int], logprobs: list[float]) -> types.Datum:
    tokens = [*prompt, *sampled]
    padding = [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
            "logprobs": types.TensorData(data=[*padding, *logprobs], dtype="float32"),
            "advantages": types.TensorData(data=[*padding, *([1.0] * len(sampled))], dtype="float32"),
        },
    )


def _observation_losses(trainer: Any, tokens: list[int]) -> list[float]:
    """Return the loss on observation tokens before each of two steps of a batch without any advantage."""
    from tinker_cookbook.rl import train as loop

    from harbor_gym.adapters.tinker.training.observation_loss import METRIC, observation_loss

    mask = [float(place // 16 in (2, 4)) for place in range(len(tokens))]
    nothing = types.TensorData(data=[0.0] * (len(tokens) - 1), dtype="float32")
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
            "logprobs": nothing,
            "advantages": nothing,
            "mask": types.TensorData(data=mask[1:], dtype="float32"),
        },
    )

    async def train() -> list[float]:
        batches: list[dict[str, Any]] = [{}, {}]
        for metrics in batches:
            await loop.train_step(
                [datum] * 2, trainer, learning_rate=1e-2, num_substeps=1, loss_fn="ppo", metrics=metrics
            )
        return [metrics[METRIC] for metrics in batches]

    with observation_loss(0.05):
        return asyncio.run(train())


def main(base_url: str, model: str) -> dict[str, Any]:
    """Sample, train, score, save, and resume from the checkpoint; then list and delete checkpoints."""
    seen: dict[str, Any] = {}
    service = tinker.ServiceClient(base_url=base_url)
    trainer = service.create_lora_training_client(base_model=model, rank=4, seed=1).result()
    sampler = trainer.save_weights_and_get_sampling_client().result()
    prompt = list(range(10, 74))
    params = types.SamplingParams(max_tokens=16, temperature=1.0, seed=3)
    sequences = sampler.sample(types.ModelInput.from_ints(prompt), 2, params).result().sequences
    seen["lengths"] = [len(sequence.tokens) for sequence in sequences]
    data = [_datum(prompt, list(sequence.tokens), list(sequence.logprobs or [])) for sequence in sequences]

    before = trainer.forward_backward(data, "importance_sampling").result()
    trained = [output["logprobs"].data[len(prompt) - 1 :] for output in before.loss_fn_outputs]
    sampled = [list(sequence.logprobs or []) for sequence in sequences]
    seen["logprob_gap"] = max(
        abs(a - b) for one, other in zip(trained, sampled, strict=True) for a, b in zip(one, other, strict=True)
    )
    reference = service.create_sampling_client(base_model=model).result()
    whole = types.ModelInput.from_ints([*prompt, *sequences[0].tokens])
    scored = reference.compute_logprobs(whole).result()
    seen["scored"] = [len(scored) - whole.length, scored[0]]
    seen["scored_gap"] = max(abs((a or 0.0) - b) for a, b in zip(scored[len(prompt) :], sampled[0], strict=True))
    trainer.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    after = trainer.forward(data, "importance_sampling").result()
    mean = [
        math.fsum(x for o in result.loss_fn_outputs for x in o["logprobs"].data[len(prompt) - 1 :])
        for result in (before, after)
    ]
    seen["more_likely_after_the_step"] = mean[1] > mean[0]

    state = trainer.save_state("first").result().path
    resumed = service.create_training_client_from_state_with_optimizer(state).result()
    again = resumed.forward(data, "importance_sampling").result()
    seen["resumed_gap"] = max(
        abs(a - b)
        for one, other in zip(after.loss_fn_outputs, again.loss_fn_outputs, strict=True)
        for a, b in zip(one["logprobs"].data, other["logprobs"].data, strict=True)
    )
    seen["observation_losses"] = _observation_losses(resumed, [*prompt, *sequences[0].tokens])
    seen["sampler_path"] = resumed.save_weights_for_sampler("third").result().path
    second = resumed.save_state("second").result().path
    rest = tinker.RestClient(base_url=base_url)
    run_id = second.removeprefix("tinker://").partition("/")[0]
    seen["listed"] = [checkpoint.checkpoint_id for checkpoint in rest.list_checkpoints(run_id).result().checkpoints]
    rest.delete_checkpoint_from_tinker_path(second).result()
    seen["left"] = [checkpoint.checkpoint_id for checkpoint in rest.list_checkpoints(run_id).result().checkpoints]
    return seen


if __name__ == "__main__":
    from harbor_gym.cli.exits import run_and_exit

    run_and_exit(lambda: sys.stdout.write(json.dumps(main(*sys.argv[1:]))))
