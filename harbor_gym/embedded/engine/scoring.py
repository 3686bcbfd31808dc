"""Log-probabilities of tokens under a causal language model, with the gradient that training needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

type _Layers = Sequence[tuple[torch.Tensor, ...]]
"""Keys and values of each layer, of shape [1, heads, tokens, size of a head]."""

_TOKENS_OF_LOGITS = 512
"""Tokens whose logits are in memory at once: a vocabulary of 50 000 then takes 100 MB."""


def target_logprobs(
    model: PreTrainedModel,
    inputs: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    wanted: Sequence[Sequence[bool]] | None = None,
) -> list[torch.Tensor]:
    """Return the log-probability of each target, computing the sequences' common beginning only once.

    Args:
        model: A causal language model; active adapters count.
        inputs: Token ids, one sequence a row, none of them empty.
        targets: As many token ids as each row has: those that are to follow.
        wanted: Likewise whether a target's log-probability is wanted; None wants all.

    Returns:
        One float32 tensor a row, as long as the row has wanted targets.
    """
    known = wanted or _everything(inputs)
    shared = _common_beginning(inputs, targets, known)
    first, layers = _begin(model, inputs[0][:shared], targets[0][:shared], known[0][:shared])
    return _go_on(model, first, layers, inputs, targets, known, shared)


def add_gradients(
    model: PreTrainedModel,
    inputs: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    loss: Callable[[Sequence[int], list[torch.Tensor]], torch.Tensor],
    wanted: Sequence[Sequence[bool]] | None = None,
    *,
    at_once: int = 1,
) -> list[torch.Tensor]:
    """Add a loss's gradient to the weights' own, in passes of a few sequences after one of their common beginning.

    The memory is that of the longest pass, and the gradient that of all sequences together.

    Args:
        model: As :func:`target_logprobs`.
        inputs: Likewise.
        targets: Likewise.
        loss: Called with the places of a pass's sequences and their log-probabilities; the losses of the passes add up.
        wanted: As :func:`target_logprobs`.
        at_once: Sequences of one pass.

    Returns:
        What :func:`target_logprobs` does, without a gradient.
    """
    known = wanted or _everything(inputs)
    shared = _common_beginning(inputs, targets, known)
    first, layers = _begin(model, inputs[0][:shared], targets[0][:shared], known[0][:shared])
    ends = [first, *itertools.chain.from_iterable(layers)]
    # Each pass ends at these copies; what they gather goes through the beginning once.
    copies = [end.detach().requires_grad_() for end in ends]
    own_layers = list(itertools.batched(copies[1:], 2))
    results: list[torch.Tensor] = []
    for places in itertools.batched(range(len(inputs)), at_once):
        of_inputs, of_targets = [inputs[at] for at in places], [targets[at] for at in places]
        of_known = [known[at] for at in places]
        scored = _go_on(model, copies[0], own_layers, of_inputs, of_targets, of_known, shared)
        loss(places, scored).backward()
        results += [row.detach() for row in scored]
    used = [(end, copy.grad) for end, copy in zip(ends, copies, strict=True) if end.requires_grad]
    if used := [(end, gradient) for end, gradient in used if gradient is not None]:
        torch.autograd.backward([end for end, _ in used], [gradient for _, gradient in used])
    return results


def _everything(inputs: Sequence[Sequence[int]]) -> list[list[bool]]:
    return [[True] * len(row) for row in inputs]


def _begin(
    model: PreTrainedModel, inputs: Sequence[int], targets: Sequence[int], wanted: Sequence[bool]
) -> tuple[torch.Tensor, _Layers]:
    """Return the wanted log-probabilities of a beginning, and each layer's keys and values of it."""
    device, body = model.device, cast("Any", model.model)
    if not inputs:
        return torch.zeros(0, device=device), []
    cache = DynamicCache(config=model.config)
    # The cache is the fourth argument: its name is another one since transformers 5.24.
    hidden = body(torch.tensor([list(inputs)], device=device), None, None, cache, use_cache=True).last_hidden_state
    chosen = torch.tensor(list(wanted), device=device)
    first = _logprobs(model.lm_head, hidden[0][chosen], torch.tensor(list(targets), device=device)[chosen])
    return first, [(layer.keys, layer.values) for layer in cast("Any", cache).layers]


def _go_on(
    model: PreTrainedModel,
    first: torch.Tensor,
    layers: _Layers,
    inputs: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    wanted: Sequence[Sequence[bool]],
    shared: int,
) -> list[torch.Tensor]:
    """Return the wanted log-probabilities of sequences whose first ``shared`` tokens are computed."""
    device, body = model.device, cast("Any", model.model)
    tokens, following, chosen = (_padded(rows, shared).to(device) for rows in (inputs, targets, wanted))
    cache = DynamicCache(config=model.config) if layers else None
    for index, (keys, values) in enumerate(layers):
        assert cache is not None, "made for these layers"
        cache.update(keys.expand(len(inputs), -1, -1, -1), values.expand(len(inputs), -1, -1, -1), index)
    # Padding stands at the end, where causal attention keeps it from every token that counts.
    hidden = body(tokens, None, None, cache, use_cache=cache is not None).last_hidden_state
    rest = _logprobs(model.lm_head, hidden[chosen.bool()], following[chosen.bool()])
    return [torch.cat([first, own]) for own in rest.split(chosen.sum(1).tolist())]


def _common_beginning(*columns: Sequence[Sequence[int]]) -> int:
    """Return the number of first places at which all rows are the same in each column; each row keeps a place."""
    rows = len(columns[0])
    limit = min(map(len, columns[0])) - 1 if rows > 1 else 0
    return next(
        (
            place
            for place in range(limit)
            if any(row[place] != column[0][place] for column in columns for row in column)
        ),
        limit,
    )


def _padded(rows: Sequence[Sequence[int]], start: int) -> torch.Tensor:
    """Return the rows from ``start`` on, filled up with zeros to the longest one's length."""
    padded = torch.zeros(len(rows), max(map(len, rows)) - start, dtype=torch.long)
    for index, row in enumerate(rows):
        padded[index, : len(row) - start] = torch.tensor(row[start:], dtype=torch.long)
    return padded


def _logprobs(head: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    parts = zip(hidden.split(_TOKENS_OF_LOGITS), targets.split(_TOKENS_OF_LOGITS), strict=True)
    return torch.cat([checkpoint(_of_part, head, *part, use_reentrant=False) for part in parts])


def _of_part(head: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = head(hidden).float()
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
