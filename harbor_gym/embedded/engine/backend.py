"""SkyRL's backend for models of Hugging Face: transformers' classes, and a LoRA adapter by PEFT for each client."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tarfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from pydantic import BaseModel, Field
from safetensors.torch import load_file, save_file
from skyrl.backends.backend import AbstractBackend
from skyrl.backends.renderer import render_model_input
from skyrl.tinker import types
from skyrl.utils.storage import download_and_unpack, pack_and_upload
from transformers import AutoModelForCausalLM, AutoTokenizer

from .devices import device_of, kept_bytes
from .generation import Generation, Request, Sampled
from .losses import LOSSES, token_losses
from .scoring import add_gradients, target_logprobs

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
_WEIGHTS = "adapter_model.safetensors"
_NO_ADAPTER = "none"


class TransformersConfig(BaseModel, extra="forbid"):
    """Settings of this backend."""

    max_lora_adapters: int = Field(ge=1)
    """Adapters at once."""

    max_lora_rank: int = Field(ge=1)
    """Largest rank that a client may ask for."""

    sequences_at_once: int = Field(ge=1)
    """Sequences sampled together."""

    kept_mib: int = Field(ge=0)
    """Most memory of keys and values that are kept between turns, in MiB."""

    threads: int | None = Field(default=None, ge=1)
    """Torch's threads; None is torch's own number."""

    device: str | None = None
    """Where to compute: cpu, cuda or cuda:1. None is CUDA where torch sees a GPU, and else the CPU."""


@dataclass
class _Trained:
    """A client's model."""

    lora: types.LoraConfig
    adapter: str
    sampling_adapter: str
    optimizer: torch.optim.AdamW
    sequences: int = 0
    """Sequences whose gradients are summed up."""

    sampled_checkpoint: str | None = None
    """The checkpoint that is in ``sampling_adapter``."""


class TransformersBackend(AbstractBackend):
    """Trains and samples one base model with any number of adapters, in float32."""

    def __init__(self, base_model: str, config: TransformersConfig) -> None:
        self.config = config
        self.metrics = types.EngineMetrics()
        self._base_model = base_model
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        device = device_of(config.device)
        model: Any = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32).eval()
        self._model = model.to(device)
        # An adapter that is never used: PEFT always wants one to be active.
        self._peft = peft.PeftModel(self._model, self._lora(_ATTENTION[:1], rank=1, alpha=1), _NO_ADAPTER)
        tokenizer: Any = AutoTokenizer.from_pretrained(base_model)
        self._generation = Generation(self._model, tokenizer.decode, kept_bytes(device, config.kept_mib << 20))
        self._trained: dict[str, _Trained] = {}
        self._numbers = itertools.count()

    def has_model(self, model_id: str) -> bool:
        """Return whether there is a client's model of this id."""
        return model_id in self._trained

    def create_model(self, model_id: str, lora_config: types.LoraConfig, model_role: str = "policy") -> None:
        """Make an adapter that changes nothing yet."""
        if model_role != "policy":
            raise ValueError(f"this server trains policies, and no {model_role}")
        if len(self._trained) >= self.config.max_lora_adapters:
            raise ValueError(f"this server holds {self.config.max_lora_adapters} adapters, and all are in use")
        if not 0 < lora_config.rank <= self.config.max_lora_rank:
            raise ValueError(f"a LoRA rank is from 1 to {self.config.max_lora_rank} here, not {lora_config.rank}")
        if lora_config.train_unembed and self._model.config.tie_word_embeddings:
            raise ValueError("train_unembed: this model's embeddings are tied, and no adapter can change one of them")
        number = next(self._numbers)
        names = f"trained{number}", f"sampled{number}"
        targets = (
            *(_ATTENTION if lora_config.train_attn else ()),
            *(_FEED_FORWARD if lora_config.train_mlp else ()),
            *(("lm_head",) if lora_config.train_unembed else ()),
        )
        for name in names:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(lora_config.seed)
                self._peft.add_adapter(name, self._lora(targets, rank=lora_config.rank, alpha=lora_config.alpha))
        self._trained[model_id] = _Trained(lora_config, *names, torch.optim.AdamW(self._parameters(names[0]), lr=0.0))

    def delete_model(self, model_id: str) -> None:
        """Free a client's model."""
        trained = self._trained.pop(model_id)
        self._peft.set_adapter(_NO_ADAPTER)
        for name in (trained.adapter, trained.sampling_adapter):
            self._peft.delete_adapter(name)
        self._generation.forget((model_id, trained.sampled_checkpoint))

    def forward_backward(
        self, prepared_batch: types.PreparedModelPassBatch
    ) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
        """Add the gradients of a batch to those of its models, and return each token's loss and log-probability."""
        return self._pass(prepared_batch, with_gradient=True)

    def forward(
        self, prepared_batch: types.PreparedModelPassBatch
    ) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
        """Return each token's loss and log-probability."""
        return self._pass(prepared_batch, with_gradient=False)

    def optim_step(self, model_id: str, request_data: types.OptimStepInput) -> types.OptimStepOutput:
        """Make a step of AdamW with the mean of the sequences' gradients."""
        trained, adam = self._trained[model_id], request_data.adam_params
        parameters = self._parameters(trained.adapter)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad /= max(trained.sequences, 1)
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        for group in trained.optimizer.param_groups:
            group.update(
                lr=adam.learning_rate,
                betas=(adam.beta1, adam.beta2),
                eps=adam.eps,
                weight_decay=adam.weight_decay,
            )
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        trained.sequences = 0
        return types.OptimStepOutput(
            metrics={"skyrl.ai/grad_norm": float(norm), "skyrl.ai/learning_rate": adam.learning_rate}
        )

    def sample(self, prepared_batch: types.PreparedSampleBatch) -> dict[str, types.SampleOutput | types.ErrorResponse]:
        """Sample messages; a request that can't be answered gets an error, and the others their messages."""
        batch = prepared_batch
        prompts = [rendered.prompt_ids for rendered in render_model_input(batch.all_model_inputs)]
        results: dict[str, types.SampleOutput | types.ErrorResponse] = {}
        wanted: dict[tuple[str, str], list[int]] = {}
        for request, model, first, end, _, top in batch.request_batch_slices:
            problem = "it has no log-probabilities of other tokens than the prompt's" if top else ""
            if problem := problem or self._misfit(len(prompts[first]), batch.all_sampling_params[first].max_tokens):
                results[request] = types.ErrorResponse(error=f"this server can't answer: {problem}", status="failed")
                continue
            wanted.setdefault((model, batch.all_checkpoint_ids[first]), []).extend(range(first, end))
        sampled: dict[int, Sampled] = {}
        for (model, checkpoint), places in wanted.items():
            with self._weights(model, checkpoint, batch.all_checkpoint_paths[places[0]]):
                for some in itertools.batched(places, self.config.sequences_at_once):
                    requests = [_request(prompts[place], batch.all_sampling_params[place]) for place in some]
                    sampled.update(zip(some, self._generation.sample(requests, (model, checkpoint)), strict=True))
        for request, model, first, end, with_prompt, _ in batch.request_batch_slices:
            if request in results:
                continue
            scored = None
            if with_prompt:
                path = batch.all_checkpoint_paths[first]
                prompt = prompts[first]
                with self._weights(model, batch.all_checkpoint_ids[first], path), torch.no_grad():
                    scored = [None, *(self._score([prompt[:-1]], [prompt[1:]])[0].tolist() if prompt[1:] else ())]
            results[request] = types.SampleOutput(
                sequences=[_sequence(sampled[place]) for place in range(first, end)], prompt_logprobs=scored
            )
        return results

    def save_checkpoint(self, output_path: Any, model_id: str) -> None:
        """Write an adapter and its optimizer's state."""
        trained = self._trained[model_id]
        with pack_and_upload(output_path) as folder:
            self._write_adapter(folder, trained)
            torch.save(trained.optimizer.state_dict(), folder / "optimizer.pt")

    def load_checkpoint(self, checkpoint_path: Any, model_id: str, load_optimizer: bool) -> None:
        """Read what :meth:`save_checkpoint` wrote.

        Raises:
            ValueError: It is no such checkpoint, or one of another rank.
        """
        trained = self._trained[model_id]
        try:
            with download_and_unpack(checkpoint_path) as folder:
                self._read_adapter(folder, trained.adapter, trained.lora)
                if load_optimizer:
                    # A GPU's tensors would ask for that GPU: the optimizer moves them to its parameters.
                    state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
                    trained.optimizer.load_state_dict(state)
        except (OSError, tarfile.TarError) as exc:
            raise ValueError(f"{checkpoint_path} is no checkpoint of this server's: {exc}") from exc

    def save_sampler_checkpoint(self, output_path: Any, model_id: str, persist: bool = True) -> None:
        """Write an adapter as PEFT does, also if it is only to be sampled from: :meth:`sample` reads it there."""
        with pack_and_upload(output_path) as folder:
            self._write_adapter(folder, self._trained[model_id])

    def _pass(
        self, batch: types.PreparedModelPassBatch, *, with_gradient: bool
    ) -> dict[str, types.ForwardBackwardOutput | types.ErrorResponse]:
        if unknown := sorted(set(batch.all_loss_fns) - LOSSES.keys()):
            raise ValueError(f"this server has no loss {', '.join(unknown)}; it has {', '.join(LOSSES)}")
        inputs = [rendered.prompt_ids for rendered in render_model_input(batch.all_model_inputs)]
        results: dict[str, types.ForwardBackwardOutput | types.ErrorResponse] = {}
        for request, model, first, end in batch.request_batch_slices:
            trained = self._trained[model]
            self._peft.set_adapter(trained.adapter)
            places = range(first, end)
            columns = [inputs[at] for at in places], [batch.all_targets[at] for at in places]
            if with_gradient:
                scored = add_gradients(self._model, *columns, functools.partial(_mean_losses, batch, first))
            else:
                with torch.no_grad():
                    scored = [self._score([row], [target])[0] for row, target in zip(*columns, strict=True)]
            outputs = [
                {"elementwise_loss": _tensor(_losses(batch, at, logprobs)), "logprobs": _tensor(logprobs)}
                for at, logprobs in zip(places, scored, strict=True)
            ]
            trained.sequences += (end - first) if with_gradient else 0
            results[request] = types.ForwardBackwardOutput(
                loss_fn_output_type="scalar", loss_fn_outputs=outputs, metrics={}
            )
        return results

    def _score(self, inputs: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return target_logprobs(self._model, inputs, targets)

    def _misfit(self, prompt: int, max_tokens: int) -> str:
        most = self._model.config.max_position_embeddings
        if prompt + max_tokens <= most:
            return ""
        return f"a prompt of {prompt} tokens and an answer of {max_tokens} exceed the model's context of {most}"

    @contextlib.contextmanager
    def _weights(self, model_id: str, checkpoint: str, path: str) -> Generator[None]:
        """Have the weights of a checkpoint active during the block; the base model's where there is no model."""
        if not model_id:
            with self._peft.disable_adapter():
                yield
            return
        trained = self._trained[model_id]
        if trained.sampled_checkpoint != checkpoint:
            self._generation.forget((model_id, trained.sampled_checkpoint))
            trained.sampled_checkpoint = None
            with download_and_unpack(Path(path)) as folder:  # pyright: ignore[reportArgumentType]  # any path
                self._read_adapter(folder, trained.sampling_adapter, trained.lora)
            trained.sampled_checkpoint = checkpoint
        self._peft.set_adapter(trained.sampling_adapter)
        yield

    def _parameters(self, adapter: str) -> list[torch.nn.Parameter]:
        return [value for name, value in self._model.named_parameters() if f".{adapter}." in name]

    def _lora(self, targets: Sequence[str], *, rank: int, alpha: float) -> peft.LoraConfig:
        settings: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "target_modules": list(targets)}
        return peft.LoraConfig(base_model_name_or_path=self._base_model, **settings)

    def _write_adapter(self, folder: Path, trained: _Trained) -> None:
        state = peft.get_peft_model_state_dict(self._peft, adapter_name=trained.adapter)
        save_file({name: value.detach().contiguous() for name, value in state.items()}, folder / _WEIGHTS)
        self._peft.peft_config[trained.adapter].save_pretrained(str(folder))

    def _read_adapter(self, folder: Path, adapter: str, lora: types.LoraConfig) -> None:
        known = peft.LoraConfig.from_pretrained(str(folder))
        if known.r != lora.rank:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(f"the checkpoint's LoRA rank is {known.r}, and the model's is {lora.rank}")  # pyright: ignore[reportAttributeAccessIssue]
        peft.set_peft_model_state_dict(self._peft, load_file(folder / _WEIGHTS), adapter_name=adapter)


def _request(prompt: list[int], parameters: types.SamplingParams) -> Request:
    return Request(
        prompt,
        parameters.max_tokens,
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        seed=parameters.seed,
        stop_tokens=frozenset(parameters.stop_tokens or ()),
        stop_strings=tuple(parameters.stop_strings or ()),
    )


def _sequence(sampled: Sampled) -> types.GeneratedSequence:
    reason = "stop" if sampled.is_stopped else "length"
    return types.GeneratedSequence(stop_reason=reason, tokens=sampled.tokens, logprobs=sampled.logprobs)


def _losses(batch: types.PreparedModelPassBatch, at: int, logprobs: torch.Tensor) -> torch.Tensor:
    def given(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values or [0.0] * len(logprobs), device=logprobs.device)

    return token_losses(
        batch.all_loss_fns[at],
        logprobs,
        given(batch.all_token_weights[at]),
        given(batch.all_sampling_logprobs[at]),
        given(batch.all_advantages[at]),
        batch.all_loss_fn_configs[at],
    )


def _mean_losses(
    batch: types.PreparedModelPassBatch, first: int, places: Sequence[int], scored: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the sum of the sequences' losses, each of them the weighted mean of its tokens'."""
    return torch.stack(
        [
            _losses(batch, first + place, logprobs).sum() / max(sum(batch.all_token_weights[first + place]), 1e-9)
            for place, logprobs in zip(places, scored, strict=True)
        ]
    ).sum()


def _tensor(values: torch.Tensor) -> dict[str, Any]:
    return {"data": values.detach().tolist(), "dtype": "float32", "shape": [len(values)]}
