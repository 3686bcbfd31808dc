"""Sampling from a causal language model, several sequences at once, with the keys and values of earlier turns kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, StaticCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

type _Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, of shape [1, heads, tokens, size of a head]."""


@dataclass(frozen=True)
class Request:
    """One sequence to sample."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""

    top_k: int = -1
    """Sample from this number of likeliest tokens; -1 is all."""

    top_p: float = 1.0
    """Sample from the likeliest tokens that have this probability together."""

    seed: int = 0
    stop_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()


@dataclass
class Sampled:
    """What was sampled."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token under the model itself, at temperature 1."""

    is_stopped: bool = False
    """Whether the last token ends the message; else ``max_tokens`` did."""


@dataclass(frozen=True)
class _Kept:
    version: Hashable
    tokens: list[int]
    layers: _Layers

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for layer in self.layers for part in layer)

    def common(self, prompt: Sequence[int]) -> int:
        """Return the number of first tokens of ``prompt`` whose keys and values are here."""
        limit = min(len(self.tokens), len(prompt))
        return next((place for place in range(limit) if self.tokens[place] != prompt[place]), limit)


@dataclass
class _Row:
    """A sequence that is being sampled."""

    request: Request
    layers: _Layers
    logits: torch.Tensor
    random: torch.Generator
    sampled: Sampled = field(default_factory=Sampled)


class Generation:
    """Samples from one model, and keeps what it computed for the next turns of the same conversations.

    Args:
        model: A causal language model; active adapters count.
        decode: Returns the text of tokens, for stop strings.
        kept_bytes: Most memory of the keys and values that are kept.
    """

    def __init__(self, model: PreTrainedModel, decode: Callable[[list[int]], str], kept_bytes: int) -> None:
        self._model = model
        self._decode = decode
        self._kept_bytes = kept_bytes
        self._kept: list[_Kept] = []
        self.computed_tokens = 0
        """Prompt tokens that were not kept and went through the model."""

    def forget(self, version: Hashable) -> None:
        """Free the memory of a version of the weights."""
        self._kept = [kept for kept in self._kept if kept.version != version]

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], version: Hashable) -> list[Sampled]:
        """Sample one message for each request, together.

        Args:
            requests: What to sample, each with at least one token of a prompt.
            version: Names the weights: what other weights computed is not used.
        """
        begun: dict[tuple[int, ...], tuple[_Layers, torch.Tensor]] = {}
        for request in requests:
            if (prompt := tuple(request.prompt)) not in begun:
                begun[prompt] = self._read(request.prompt, version)
        rows = [
            _Row(request, *begun[tuple(request.prompt)], torch.Generator().manual_seed(request.seed))
            for request in requests
        ]
        begun.clear()  # its memory is freed as soon as the rows have one cache together
        results = [row.sampled for row in rows]
        self._write(rows, version)
        return results

    def _read(self, prompt: list[int], version: Hashable) -> tuple[_Layers, torch.Tensor]:
        """Return a prompt's keys and values, and the logits of the token that follows."""
        candidates = [kept for kept in self._kept if kept.version == version]
        best = max(candidates, key=lambda kept: kept.common(prompt), default=None)
        # The last token always goes through the model: its logits are wanted.
        known = min(best.common(prompt), len(prompt) - 1) if best is not None else 0
        cache = DynamicCache(config=self._model.config)
        if best is not None and known:
            for index, (keys, values) in enumerate(best.layers):
                cache.update(keys[..., :known, :], values[..., :known, :], index)
        hidden = self._forward(torch.tensor([prompt[known:]]), None, None, cache)
        self.computed_tokens += len(prompt) - known
        layers = _layers_of(cache)
        self._keep(_Kept(version, prompt, layers))
        return layers, self._logits(hidden)[0]

    def _write(self, rows: list[_Row], version: Hashable) -> None:
        longest = max(len(row.request.prompt) for row in rows)
        cache: Any = StaticCache(self._model.config, longest + max(row.request.max_tokens for row in rows))
        # Prompts end at the same place; what stands before a shorter one is masked.
        starts = torch.tensor([longest - len(row.request.prompt) for row in rows])
        for index in range(len(rows[0].layers)):
            cache.update(_together(rows, longest, index, 0), _together(rows, longest, index, 1), index)
        for row in rows:
            row.layers = []
        logits = torch.stack([row.logits for row in rows])
        written = 0
        while True:
            newest = [self._choose(row, of_row) for row, of_row in zip(rows, logits, strict=True)]
            written += 1
            going = [place for place, row in enumerate(rows) if not self._is_over(row)]
            for place in set(range(len(rows))) - set(going):
                self._keep(_kept_of(rows[place], cache, place, int(starts[place]), version))
            if not going:
                return
            if len(going) < len(rows):
                chosen = torch.tensor(going)
                cache.reorder_cache(chosen)
                rows, newest = ([rows[at] for at in going], [newest[at] for at in going])
                starts = starts[chosen]
            place = longest + written - 1
            mask = (torch.arange(place + 1) >= starts[:, None]).long()
            hidden = self._forward(torch.tensor(newest)[:, None], mask, (place - starts)[:, None], cache)
            logits = self._logits(hidden)

    def _choose(self, row: _Row, logits: torch.Tensor) -> int:
        request = row.request
        token = int(logits.argmax()) if request.temperature == 0 else _drawn(request, logits, row.random)
        row.sampled.tokens.append(token)
        row.sampled.logprobs.append(float(logits[token] - logits.logsumexp(-1)))
        return token

    def _is_over(self, row: _Row) -> bool:
        request, sampled = row.request, row.sampled
        sampled.is_stopped = sampled.tokens[-1] in request.stop_tokens
        if request.stop_strings and not sampled.is_stopped:
            text = self._decode(sampled.tokens)
            sampled.is_stopped = any(stop in text for stop in request.stop_strings)
        return sampled.is_stopped or len(sampled.tokens) >= request.max_tokens

    def _keep(self, new: _Kept) -> None:
        # A beginning of the new tokens is found in them, too.
        self._kept = [
            kept for kept in self._kept if kept.version != new.version or kept.common(new.tokens) < len(kept.tokens)
        ]
        self._kept.append(new)
        while sum(kept.size_bytes for kept in self._kept) > self._kept_bytes:
            del self._kept[0]

    def _forward(
        self, tokens: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        device = self._model.device
        moved = [part if part is None else part.to(device) for part in (tokens, mask, positions)]
        body: Any = self._model.model
        # The cache is the fourth argument: its name is another one since transformers 5.24.
        return body(*moved, cache, use_cache=True).last_hidden_state

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.lm_head(hidden[:, -1]).float().cpu()  # pyright: ignore[reportCallIssue]


def _together(rows: Sequence[_Row], longest: int, layer: int, kind: int) -> torch.Tensor:
    """Return a layer's keys (0) or values (1) of all rows as one tensor, each row's tokens at its end."""
    parts = [row.layers[layer][kind] for row in rows]
    _, heads, _, size = parts[0].shape
    whole = parts[0].new_zeros(len(rows), heads, longest, size)
    for place, part in enumerate(parts):
        whole[place, :, longest - part.shape[2] :] = part[0]
    return whole


def _kept_of(row: _Row, cache: Any, place: int, start: int, version: Hashable) -> _Kept:
    """Return a copy of a row that is over. Its last token never went through the model."""
    tokens = [*row.request.prompt, *row.sampled.tokens[:-1]]
    part = (slice(place, place + 1), slice(None), slice(start, start + len(tokens)))
    return _Kept(version, tokens, [(keys[part].clone(), values[part].clone()) for keys, values in _layers_of(cache)])


def _layers_of(cache: Any) -> _Layers:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _drawn(request: Request, logits: torch.Tensor, random: torch.Generator) -> int:
    scaled = logits / request.temperature
    if 0 < request.top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(request.top_k).values[-1], -torch.inf)
    probabilities = scaled.softmax(-1)
    if request.top_p < 1:
        ordered, places = probabilities.sort(descending=True)
        # The token with which the sum reaches top_p still belongs to it.
        ordered[ordered.cumsum(-1) - ordered >= request.top_p] = 0
        probabilities = torch.zeros_like(probabilities).scatter(0, places, ordered)
    return int(torch.multinomial(probabilities, 1, generator=random))
