"""A small inference engine on this machine that serves token ids over HTTP, in the format of vLLM's completions."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from aiohttp import web
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from harbor_gym._runtime.portal import get_portal
from harbor_gym.errors import UsageError

_LINGER_SEC = 0.02
"""How long the first request of a batch waits for others."""


@dataclass(frozen=True)
class _Request:
    prompt: list[int]
    max_tokens: int
    temperature: float
    answer: asyncio.Future[tuple[list[int], list[float]]] = field(repr=False)


class CompletionsEngine:
    """Serve a model on loopback to any number of clients, in batches. Use it as a context manager.

    Of a request's fields only ``prompt`` (token ids), ``max_tokens`` and ``temperature`` have an effect; it samples
    from the whole distribution. For models of a few million weights.

    Args:
        model: The model. Its weights are copied by :meth:`load`, between batches.
        tokenizer: Gives the ids of the end of a message and of padding.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        assert isinstance(model, GenerationMixin)
        self._model: Any = model.eval()
        self._end, self._pad = int(_id(tokenizer, "eos_token_id")), int(_id(tokenizer, "pad_token_id"))
        self._weights = dict(model.named_parameters())
        self._runner: web.AppRunner | None = None
        self._batcher: asyncio.Task[None] | None = None
        self.url = ""
        """The engine's address, while it is open."""
        self.versions = 0
        """How many times weights were loaded."""

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights into the model while no batch is being sampled. May be called in any thread; blocks.

        Raises:
            UsageError: The model has no parameter of that name and shape.
        """
        get_portal().call(self._load, list(weights))

    def __enter__(self) -> Self:
        """Serve."""
        get_portal().call(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop serving."""
        get_portal().call(self._close)

    # -- on the portal's loop --------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._lock = asyncio.Lock()
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._batcher = asyncio.create_task(self._sample_batches())

    async def _close(self) -> None:
        if self._batcher is not None:
            self._batcher.cancel()
            await asyncio.wait((self._batcher,))
        if self._runner is not None:
            await self._runner.cleanup()

    async def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        async with self._lock:
            for name, value in weights:
                if name not in self._weights or self._weights[name].shape != value.shape:
                    raise UsageError(f"the engine's model has no parameter {name!r} of shape {tuple(value.shape)}")
                with torch.no_grad():
                    self._weights[name].copy_(value)
            self.versions += 1

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        answer: asyncio.Future[tuple[list[int], list[float]]] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(
            _Request(list(body["prompt"]), int(body["max_tokens"]), float(body["temperature"]), answer)
        )
        tokens, logprobs = await answer
        choice: Mapping[str, Any] = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if tokens[-1] == self._end else "length",
            "token_ids": tokens,
            "logprobs": {"tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": logprobs},
        }
        return web.json_response({"object": "text_completion", "model": body["model"], "choices": [choice]})

    async def _sample_batches(self) -> None:
        while True:
            batch = [await self._requests.get()]
            await asyncio.sleep(_LINGER_SEC)
            while not self._requests.empty():
                batch.append(self._requests.get_nowait())
            for temperature in {request.temperature for request in batch}:
                await self._answer([request for request in batch if request.temperature == temperature], temperature)

    async def _answer(self, batch: list[_Request], temperature: float) -> None:
        try:
            async with self._lock:
                sampled = await asyncio.to_thread(self._sample, batch, temperature)
        except Exception as exc:  # the boundary to the model: each client gets the error
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(exc)
            return
        for request, answer in zip(batch, sampled, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)

    @torch.no_grad()
    def _sample(self, batch: list[_Request], temperature: float) -> list[tuple[list[int], list[float]]]:
        width = max(len(request.prompt) for request in batch)
        padding = [width - len(request.prompt) for request in batch]
        tokens = torch.tensor([[self._pad] * pad + request.prompt for pad, request in zip(padding, batch, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        made = self._model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=max(request.max_tokens for request in batch),
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            eos_token_id=self._end,
            pad_token_id=self._pad,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logprobs = (torch.stack(made.logits, dim=1) / temperature).log_softmax(-1)
        chosen = made.sequences[:, width:]
        scores = logprobs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        return [
            self._cut(row, score, request.max_tokens)
            for row, score, request in zip(chosen.tolist(), scores.tolist(), batch, strict=True)
        ]

    def _cut(self, tokens: list[int], logprobs: list[float], limit: int) -> tuple[list[int], list[float]]:
        length = tokens.index(self._end) + 1 if self._end in tokens else len(tokens)
        length = min(length, limit)
        return tokens[:length], logprobs[:length]


def _id(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    value = getattr(tokenizer, name)
    if not isinstance(value, int):
        raise UsageError(f"the tokenizer has no {name}")
    return value
