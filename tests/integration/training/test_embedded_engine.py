"""The embedded server's engine for models of Hugging Face: what it samples has the log-probabilities that it trains."""

import itertools
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.embedded.models import ARCHITECTURES
from tests.helpers.policies.random_policy import write_random_model

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("engines")]

PROMPTS = [list(range(20, 60)), list(range(20, 50)), [*range(20, 40), *range(90, 130)]]
"""They begin alike and differ in length."""

TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, engines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def generation(model: Any, kept_bytes: int = 1 << 30) -> Any:
    from harbor_gym.embedded.engine.generation import Generation

    return Generation(model, lambda tokens: "".join(f"<{token}>" for token in tokens), kept_bytes)


def wanted(prompt: Sequence[int], max_tokens: int = 8, **settings: Any) -> Any:
    from harbor_gym.embedded.engine.generation import Request

    return Request(list(prompt), max_tokens, **settings)


def trained(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The log-probabilities of tokens after a prompt, as training computes them."""
    import torch

    from harbor_gym.embedded.engine.scoring import target_logprobs

    whole = [*prompt, *tokens]
    with torch.no_grad():
        return target_logprobs(model, [whole[:-1]], [whole[1:]])[0].tolist()[len(prompt) - 1 :]


def test_turns_of_several_conversations_have_the_logprobs_of_training(model: Any) -> None:
    sampler = generation(model)
    prompts = [list(prompt) for prompt in PROMPTS]
    for turn in range(3):
        requests = [wanted(prompt, 4 + 3 * place, seed=9 * turn + place) for place, prompt in enumerate(prompts)]
        for prompt, request, sampled in zip(prompts, requests, sampler.sample(requests, "a"), strict=True):
            assert len(sampled.tokens) == request.max_tokens
            assert sampled.logprobs == pytest.approx(trained(model, prompt, sampled.tokens), abs=TOLERANCE)
            prompt += [*sampled.tokens, 7, turn]


def test_only_what_is_new_is_computed(model: Any) -> None:
    sampler = generation(model)
    prompt = PROMPTS[0]
    first, same = sampler.sample([wanted(prompt, seed=1), wanted(prompt, seed=2)], "a")
    assert sampler.computed_tokens == len(prompt), "equal prompts are read once"
    assert first.tokens != same.tokens
    following = [*prompt, *first.tokens, 3, 4, 5]
    sampler.sample([wanted(following)], "a")
    assert sampler.computed_tokens == len(prompt) + 4, "the last sampled token and three new ones"
    sampler.sample([wanted([*prompt[:30], 1, 2])], "a")
    assert sampler.computed_tokens == len(prompt) + 6, "another conversation that begins alike"
    sampler.sample([wanted(prompt)], "b")
    assert sampler.computed_tokens == 2 * len(prompt) + 6, "other weights"
    sampler.forget("b")
    sampler.sample([wanted(prompt)], "b")
    assert sampler.computed_tokens == 3 * len(prompt) + 6


@pytest.mark.parametrize("kept_bytes", [0, 30_000])
def test_with_little_memory_the_same_is_sampled(model: Any, kept_bytes: int) -> None:
    rich, poor = generation(model), generation(model, kept_bytes)
    requests = [wanted(prompt, seed=place) for place, prompt in enumerate(PROMPTS)]
    for _ in range(2):
        one, other = (sampler.sample(requests, "a") for sampler in (rich, poor))
        assert [sampled.tokens for sampled in one] == [sampled.tokens for sampled in other]
    assert poor.computed_tokens > rich.computed_tokens


def test_a_message_ends_where_it_is_told_to(model: Any) -> None:
    (free,) = generation(model).sample([wanted(PROMPTS[0], 12, temperature=0)], "a")
    third = free.tokens[2]
    place = free.tokens.index(third) + 1
    stops: list[dict[str, Any]] = [
        {"stop_tokens": frozenset({third})},
        {"stop_strings": (f"<{third}>",)},
        {"max_tokens": place},
    ]
    requests = [wanted(PROMPTS[0], **{"max_tokens": 12, "temperature": 0, **stop}) for stop in stops]
    ends = generation(model).sample(requests, "a")
    assert [sampled.tokens for sampled in ends] == [free.tokens[:place]] * 3
    assert [sampled.is_stopped for sampled in ends] == [True, True, False]


def test_fewer_tokens_are_sampled_from_if_asked(model: Any) -> None:
    greedy, one, nucleus = generation(model).sample(
        [wanted(PROMPTS[0], temperature=0), wanted(PROMPTS[0], top_k=1), wanted(PROMPTS[0], top_p=1e-6)], "a"
    )
    assert greedy.tokens == one.tokens == nucleus.tokens
    drawn = {
        tuple(sampled.tokens)
        for sampled in generation(model).sample([wanted(PROMPTS[0], 1, top_k=2, seed=seed) for seed in range(40)], "a")
    }
    assert len(drawn) == 2
    again, cold = generation(model), generation(model)
    hot = [wanted(PROMPTS[0], seed=seed) for seed in range(3)]
    assert [s.tokens for s in again.sample(hot, "a")] == [s.tokens for s in cold.sample(hot, "a")], "the seed decides"


def test_a_common_beginning_changes_no_logprob_and_no_gradient(model: Any) -> None:
    import torch

    from harbor_gym.embedded.engine.scoring import target_logprobs

    inputs, targets = [row[:-1] for row in PROMPTS], [row[1:] for row in PROMPTS]
    flags = [[place % 3 == 0 for place in range(len(row))] for row in inputs]

    def gradient(parts: list[Any]) -> tuple[list[list[float]], Any]:
        model.zero_grad()
        torch.cat(parts).sum().backward()
        return [part.tolist() for part in parts], torch.cat([w.grad.flatten() for w in model.parameters()])

    together, of_together = gradient(target_logprobs(model, inputs, targets, flags))
    rows = zip(inputs, targets, flags, strict=True)
    alone, of_alone = gradient([target_logprobs(model, [i], [t], [f])[0] for i, t, f in rows])
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=TOLERANCE)
    assert torch.allclose(of_together, of_alone, atol=1e-3 * float(of_alone.abs().max()))
    whole = target_logprobs(model, inputs, targets)
    assert [len(part) for part in whole] == [len(row) for row in inputs]
    assert together[2] == pytest.approx(whole[2][torch.tensor(flags[2])].tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 2, 3, 4], [5, 6, 7]]], ids=["begin alike", "begin otherwise"])
def test_passes_add_the_gradient_of_all_sequences(model: Any, prompts: list[list[int]], at_once: int) -> None:
    import torch

    from harbor_gym.embedded.engine.scoring import add_gradients, target_logprobs

    inputs, targets = [row[:-1] for row in prompts], [row[1:] for row in prompts]
    factors = [1.0, -2.0, 0.5][: len(prompts)]
    passes: list[tuple[int, ...]] = []

    def loss(places: Sequence[int], scored: list[Any]) -> Any:
        passes.append(tuple(places))
        return sum(factors[place] * row.pow(2).sum() for place, row in zip(places, scored, strict=True))

    def gradient() -> Any:
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    model.zero_grad()
    alone = [target_logprobs(model, [i], [t])[0] for i, t in zip(inputs, targets, strict=True)]
    loss(range(len(prompts)), alone).backward()
    expected = gradient()
    model.zero_grad()
    passes.clear()
    scored = add_gradients(model, inputs, targets, loss, at_once=at_once)
    assert torch.allclose(gradient(), expected, atol=1e-3 * float(expected.abs().max()))
    assert [len(places) for places in passes] == [len(p) for p in itertools.batched(range(len(prompts)), at_once)]
    for row, of_row in zip(scored, alone, strict=True):
        assert row.tolist() == pytest.approx(of_row.tolist(), abs=TOLERANCE)
        assert not row.requires_grad


@pytest.fixture(scope="module")
def backend(folder: Path) -> Any:
    from harbor_gym.embedded.engine.backend import TransformersBackend, TransformersConfig

    settings = TransformersConfig(max_lora_adapters=3, max_lora_rank=8, sequences_at_once=2, kept_mib=64)
    return TransformersBackend(str(folder), settings)


def batch(model_id: str, loss: str, rows: Sequence[Sequence[int]], **more: Sequence[float]) -> Any:
    """A pass over token sequences, with the same numbers for each token of all."""
    from skyrl.tinker import types

    def numbers(name: str, usual: float) -> list[list[float]]:
        values = more.get(name, [usual] * len(rows))
        return [[value] * (len(row) - 1) for row, value in zip(rows, values, strict=True)]

    return types.PreparedModelPassBatch(
        all_model_inputs=[given(row[:-1]) for row in rows],
        all_targets=[list(row[1:]) for row in rows],
        all_token_weights=numbers("weights", 1.0),
        all_sampling_logprobs=numbers("logprobs", 0.0),
        all_advantages=numbers("advantages", 1.0),
        all_values=[[]] * len(rows),
        all_returns=[[]] * len(rows),
        all_model_ids=[model_id] * len(rows),
        all_loss_fns=[loss] * len(rows),
        all_loss_fn_configs=[None] * len(rows),
        request_batch_slices=[("r", model_id, 0, len(rows))],
    )


def given(tokens: Sequence[int]) -> Any:
    from skyrl.tinker import types

    return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=list(tokens))])


def of_sampling(model_id: str, path: Path | str, prompts: Sequence[Sequence[int]], **more: Any) -> Any:
    from skyrl.tinker import types

    count = len(prompts)
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens": 6, "seed": 5, **more}
    parameters = types.SamplingParams(**settings)
    return types.PreparedSampleBatch(
        all_model_inputs=[given(prompt) for prompt in prompts],
        all_sampling_params=[parameters] * count,
        all_model_ids=[model_id] * count,
        all_checkpoint_ids=[str(path)] * count,
        all_checkpoint_paths=[str(path)] * count,
        all_session_ids=[None] * count,
        needs_prompt_logprobs=True,
        request_batch_slices=[(str(place), model_id, place, place + 1, True, 0) for place in range(count)],
    )


def logprobs(result: Any) -> list[float]:
    return [value for output in result["r"].loss_fn_outputs for value in output["logprobs"]["data"]]


def stepped(backend: Any, model_id: str, rate: float = 1e-2) -> dict[str, float]:
    from skyrl.tinker import types

    adam = types.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0)
    return backend.optim_step(model_id, types.OptimStepInput(adam_params=adam)).metrics


def lora(**settings: Any) -> Any:
    from skyrl.tinker import types

    usual: dict[str, Any] = {"rank": 4, "alpha": 32.0, "seed": 1}
    return types.LoraConfig(**{**usual, **settings})


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "ppo", "cispo"])
def test_a_step_of_each_loss_makes_good_tokens_likelier(backend: Any, loss: str) -> None:
    backend.create_model("m", lora())
    try:
        before = logprobs(backend.forward(batch("m", loss, PROMPTS)))
        rows = [len(row) - 1 for row in PROMPTS]
        old = [sum(before[: rows[0]]) / rows[0]] * len(PROMPTS)  # near the tokens' own, so that no clip stops the step
        backend.forward_backward(batch("m", loss, PROMPTS, logprobs=old))
        metrics = stepped(backend, "m")
        assert metrics["skyrl.ai/grad_norm"] > 0
        assert sum(logprobs(backend.forward(batch("m", loss, PROMPTS)))) > sum(before)
        assert stepped(backend, "m")["skyrl.ai/grad_norm"] == 0, "gradients are used once"
    finally:
        backend.delete_model("m")


OF_SKYRL = {
    "cross_entropy": [1.0, 0.1, 3.0, 0.0],
    "importance_sampling": [-1.1051709, -3.3201169, 0.1353353, 0.0],
    "ppo": [-1.1, -1.1, 0.9, 0.0],
    "cispo": [1.1, 0.22, -2.7, 0.0],
}
"""What ``skyrl.tinker.loss_fns`` of SkyRL 0.4.0 computes of the test's numbers by JAX."""


@pytest.mark.parametrize("name", OF_SKYRL)
def test_losses_are_skyrls(name: str) -> None:
    """Clipped or not."""
    import torch

    from harbor_gym.embedded.engine.losses import LOSSES, token_losses

    assert LOSSES.keys() == OF_SKYRL.keys()
    rows = [-1.0, -0.2, -3.0, -0.5], [1.0, 0.5, 1.0, 0.0], [-1.1, -1.4, -1.0, -0.5], [1.0, 2.0, -1.0, 5.0]
    new, weights, old, advantages = map(torch.tensor, rows)
    clips = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    assert token_losses(name, new, weights, old, advantages, clips).tolist() == pytest.approx(OF_SKYRL[name], abs=1e-6)


def test_weights_are_saved_sampled_and_loaded(backend: Any, tmp_path: Path) -> None:
    backend.create_model("m", lora())
    backend.create_model("other", lora(seed=2))
    try:
        base = backend.sample(of_sampling("", "", PROMPTS))
        backend.forward_backward(batch("m", "cross_entropy", PROMPTS))
        stepped(backend, "m")
        backend.save_sampler_checkpoint(tmp_path / "one.tar.gz", "m")
        backend.save_checkpoint(tmp_path / "state.tar.gz", "m")
        learnt = logprobs(backend.forward(batch("m", "cross_entropy", PROMPTS)))
        sampled = backend.sample(of_sampling("m", tmp_path / "one.tar.gz", PROMPTS))
        for place, prompt in enumerate(PROMPTS):
            (sequence,) = sampled[str(place)].sequences
            whole = [*prompt, *sequence.tokens]
            again = logprobs(backend.forward(batch("m", "cross_entropy", [whole])))
            assert sequence.logprobs == pytest.approx(again[len(prompt) - 1 :], abs=TOLERANCE)
            first, *scored = sampled[str(place)].prompt_logprobs
            assert first is None
            assert scored == pytest.approx(again[: len(prompt) - 1], abs=TOLERANCE)
            assert base[str(place)].prompt_logprobs != sampled[str(place)].prompt_logprobs
        # Training goes on while an older checkpoint is sampled from.
        backend.forward_backward(batch("m", "cross_entropy", PROMPTS))
        stepped(backend, "m")
        later = backend.sample(of_sampling("m", tmp_path / "one.tar.gz", PROMPTS))
        assert {k: later[k].sequences[0].tokens for k in later} == {k: sampled[k].sequences[0].tokens for k in sampled}
        assert sum(logprobs(backend.forward(batch("m", "cross_entropy", PROMPTS)))) > sum(learnt)
        backend.load_checkpoint(tmp_path / "state.tar.gz", "other", load_optimizer=True)
        assert logprobs(backend.forward(batch("other", "cross_entropy", PROMPTS))) == pytest.approx(learnt, abs=1e-6)
        backend.create_model("small", lora(rank=2))
        with pytest.raises(ValueError, match="rank is 4, and the model's is 2"):
            backend.load_checkpoint(tmp_path / "state.tar.gz", "small", load_optimizer=False)
    finally:
        for name in ("m", "other", "small"):
            if backend.has_model(name):
                backend.delete_model(name)
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert {Path(name).name for name in archive.getnames()} >= {"adapter_config.json", "adapter_model.safetensors"}


def test_an_adapter_that_learnt_nothing_is_the_base_model(backend: Any, tmp_path: Path) -> None:
    backend.create_model("m", lora())
    try:
        backend.save_sampler_checkpoint(tmp_path / "one.tar.gz", "m")
        adapted, base = (
            backend.sample(of_sampling(*whose, PROMPTS)) for whose in (("m", tmp_path / "one.tar.gz"), ("", ""))
        )
        assert [adapted[key].sequences[0].tokens for key in adapted] == [base[key].sequences[0].tokens for key in base]
    finally:
        backend.delete_model("m")


def test_what_cant_be_answered_is_said_and_the_rest_is_answered(backend: Any) -> None:
    results = backend.sample(of_sampling("", "", [PROMPTS[0], list(range(20, 90)) * 8]))
    assert len(results["0"].sequences[0].tokens) == 6
    assert "560 tokens and an answer of 6 exceed the model's context of 512" in results["1"].error


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"rank": 9}, "rank is from 1 to 8 here, not 9"), ({"train_unembed": True}, "embeddings are tied")],
)
def test_adapters_that_it_cant_make(backend: Any, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        backend.create_model("m", lora(**settings))
    assert not backend.has_model("m")


def test_another_client_has_to_wait_for_an_adapter(backend: Any) -> None:
    for number in range(3):
        backend.create_model(f"m{number}", lora())
    try:
        with pytest.raises(ValueError, match="holds 3 adapters"):
            backend.create_model("m3", lora())
        with pytest.raises(ValueError, match="no loss dppo; it has cross_entropy"):
            backend.forward(batch("m0", "dppo", PROMPTS))
    finally:
        for number in range(3):
            backend.delete_model(f"m{number}")


def test_the_configuration_is_json(folder: Path) -> None:
    """What the launcher hands on, so that a setting of another name is refused before a model is loaded."""
    from pydantic import ValidationError

    from harbor_gym.embedded.engine.backend import TransformersConfig
    from harbor_gym.embedded.server import TrainingServer

    name, backend, _, settings = TrainingServer(folder, folder)._engine()  # pyright: ignore[reportPrivateUsage]
    assert (name, backend) == ("--backend", "transformers")
    assert TransformersConfig.model_validate(json.loads(settings)).max_lora_rank == 32
    with pytest.raises(ValidationError):
        TransformersConfig.model_validate({**json.loads(settings), "max_lora_ranks": 1})
