"""The embedded server's engine on a device that is not the CPU, of which this machine needs to have none."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.adapters.tinker.training.config import TrainConfig
from harbor_gym.embedded.server import TrainingServer
from tests.helpers.policies.random_policy import write_random_model
from tests.integration.training.test_embedded_engine import TOLERANCE, batch, logprobs, lora, of_sampling, stepped

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("engines")]

PROMPTS = [list(range(20, 60)), list(range(20, 50)), [*range(20, 40), *range(90, 130)]]


@pytest.fixture(scope="module")
def folder(engines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), "LlamaForCausalLM")


def model_of(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def sampled(model: Any) -> tuple[list[list[int]], list[Any]]:
    """The tokens of two turns, and their log-probabilities."""
    import torch

    from harbor_gym.embedded.engine.generation import Generation, Request

    sampler, prompts = Generation(model, str, 1 << 30), [list(prompt) for prompt in PROMPTS]
    messages: list[Any] = []
    for turn in range(2):
        requests = [Request(prompt, 4 + place, seed=9 * turn + place) for place, prompt in enumerate(prompts)]
        now = sampler.sample(requests, "a")
        for prompt, one in zip(prompts, now, strict=True):
            prompt += [*one.tokens, 7, turn]
        messages += now
    return [one.tokens for one in messages], [torch.tensor(one.logprobs) for one in messages]


def trained(model: Any, rows: Sequence[Sequence[int]] = PROMPTS) -> Any:
    import torch

    from harbor_gym.embedded.engine.losses import LOSSES, token_losses
    from harbor_gym.embedded.engine.scoring import add_gradients

    def loss(_: Sequence[int], scored: Sequence[Any]) -> Any:
        ones = [torch.ones_like(row) for row in scored]
        return sum(
            token_losses(name, row, one, -one, one, None).sum()
            for name in LOSSES
            for row, one in zip(scored, ones, strict=True)
        )

    scored = add_gradients(model, [row[:-1] for row in rows], [row[1:] for row in rows], loss)
    gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return [row.cpu() for row in scored], gradients.cpu()


def test_what_is_sampled_and_trained_stays_on_the_models_device(folder: Path) -> None:
    import torch

    from tests.helpers.second_device import second_device

    near = model_of(folder)
    apart = model_of(folder)
    with second_device() as device:
        apart.to(device)
        apart.tie_weights()  # torch shares no weights between modules where `to` makes new ones
        assert {weight.device for weight in apart.parameters()} == {device}
        with pytest.raises(RuntimeError, match="on the same device"):
            torch.add(apart.lm_head.weight, torch.ones_like(near.lm_head.weight))
        tokens_there, of_there = sampled(apart)
        scored, gradients = trained(apart)
    tokens_here, of_here = sampled(near)
    assert tokens_there == tokens_here
    of_near, gradients_of_near = trained(near)
    for one, other in zip([*of_there, *scored], [*of_here, *of_near], strict=True):
        assert torch.allclose(one, other, atol=TOLERANCE)
    assert torch.allclose(gradients, gradients_of_near, atol=1e-3 * float(gradients_of_near.abs().max()))


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")
def test_the_backend_trains_and_samples_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import peft

    from harbor_gym.embedded.engine import backend
    from tests.helpers.second_device import SECOND, second_device

    settings = backend.TransformersConfig(max_lora_adapters=1, max_lora_rank=4, sequences_at_once=2, kept_mib=64)

    def learn(at: Path) -> list[float]:
        engine = backend.TransformersBackend(str(folder), settings)
        engine.create_model("m", lora())
        losses: list[float] = []
        for _ in range(2):
            losses += logprobs(engine.forward_backward(batch("m", "ppo", PROMPTS)))
            stepped(engine, "m", 1e-4)
        engine.save_checkpoint(at / "state.tar.gz", "m")
        engine.save_sampler_checkpoint(at / "one.tar.gz", "m")
        messages: dict[str, Any] = engine.sample(of_sampling("m", at / "one.tar.gz", PROMPTS))
        for message in messages.values():
            losses += message.sequences[0].logprobs
        engine.load_checkpoint(near / "state.tar.gz", "m", load_optimizer=True)  # the CPU's
        stepped(engine, "m", 1e-4)
        return [*losses, *logprobs(engine.forward(batch("m", "ppo", PROMPTS)))]

    (near := tmp_path / "near").mkdir()
    (apart := tmp_path / "apart").mkdir()
    here = learn(near)

    def device_of(_: str | None) -> Any:
        return SECOND

    def kept_bytes(_: Any, most: int) -> int:
        return most

    monkeypatch.setattr(backend, "device_of", device_of)
    monkeypatch.setattr(backend, "kept_bytes", kept_bytes)
    add = peft.PeftModel.add_adapter

    def add_there(model: Any, *args: Any) -> None:
        add(model, *args)
        model.to(SECOND)  # which PEFT does itself on every device but the one whose name this has

    monkeypatch.setattr(peft.PeftModel, "add_adapter", add_there)
    with second_device():
        there = learn(apart)
    assert there == pytest.approx(here, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cuda:99", r"torch .* sees \d+ GPUs, and the device is to be cuda:99"),
        ("tpu", "a device is cpu, cuda or cuda:1, not tpu"),
        ("cuda:x", "not cuda:x"),
    ],
)
def test_a_device_that_is_not_there(folder: Path, name: str, reason: str) -> None:
    from harbor_gym.embedded.engine.backend import TransformersBackend, TransformersConfig

    settings = TransformersConfig(max_lora_adapters=1, max_lora_rank=4, sequences_at_once=2, kept_mib=64, device=name)
    with pytest.raises(ValueError, match=reason):
        TransformersBackend(str(folder), settings)


def test_the_device_is_a_gpu_where_torch_sees_one() -> None:
    import torch

    from harbor_gym.embedded.engine.devices import device_of, kept_bytes

    assert device_of(None) == torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    assert device_of("cpu") == torch.device("cpu")
    assert kept_bytes(device_of("cpu"), 5) == 5


def test_a_pretrained_model_is_fine_tuned_on_a_device_that_is_there(folder: Path, tmp_path: Path) -> None:
    from harbor_gym.embedded.warm_start import warm_start
    from harbor_gym.errors import UsageError

    chat = [{"role": "user", "content": "task"}, {"role": "assistant", "content": "ls"}]
    with pytest.raises(UsageError, match="the device is to be cuda:99"):
        warm_start([chat] * 4, tmp_path, renderer_name="chat_template", steps=1, base=folder, device="cuda:99")


def test_the_server_is_told_of_the_runs_device(folder: Path) -> None:
    def settings(**more: Any) -> dict[str, Any]:
        return json.loads(TrainingServer(folder, folder, **more)._engine()[-1])  # pyright: ignore[reportPrivateUsage]

    assert settings(device="cuda:1")["device"] == "cuda:1"
    assert "device" not in settings()
    run = {"env": {"task_dir": folder}, "task_dirs": [folder], "backend": "local"}
    assert TrainConfig.model_validate({**run, "device": "cuda"}).device == "cuda"
    with pytest.raises(ValueError, match="device"):
        TrainConfig.model_validate({**run, "device": "cuda:"})
