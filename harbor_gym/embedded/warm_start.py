"""Supervised warm start: teach a policy to imitate recorded conversations, on a CPU; a tiny one in about a minute.

The tokens are the ones that the RL environment will show: each conversation goes through the same
codec (:func:`harbor_gym.adapters.tinker.codec.codec_of`), and only the policy's own tokens are learnt.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.files import publishing_once
from harbor_gym.embedded import policy
from harbor_gym.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

POLICY_FORMAT = 2
"""Version of a warm start's result from the same input. Raise it with every change to the model, the tokens or the
training, so that no older cached policy is taken for the new one; not where its sums are only rounded otherwise."""

RECORD_NAME = "warm_start.json"
"""File in a policy's directory that records how it was made. It is written last: with it the policy is complete."""


@dataclass(frozen=True)
class WarmStartSettings:
    """Everything besides the conversations that decides the policy."""

    renderer_name: str
    """The cookbook's renderer that the policy will be driven with."""

    seed: int = 0
    """Decides the first weights, the held-out conversations and the order of batches."""

    steps: int = 120
    """Optimizer steps at most."""

    base: str | None = None
    """What a pretrained model is known by; None makes a tiny policy of random weights."""

    batch_size: int = 8
    """Conversations a step."""

    at_once: int = 8
    """Conversations of one pass through the model: memory grows with them. It divides ``batch_size``."""

    learning_rate: float = 1e-2
    """Peak rate of every optimizer; a tenth of the steps warm up, a cosine leads down to a tenth of it."""

    vocab_size: int = 2048
    hidden_size: int = 192
    layers: int = 4

    threads: int = 2
    """Torch's threads. It is part of the settings because it changes the order of sums."""


PRETRAINED_SETTINGS: dict[str, Any] = {"batch_size": 2, "at_once": 1, "learning_rate": 5e-4, "threads": 1}
"""What differs for a pretrained model of some hundred million parameters."""


@dataclass(frozen=True)
class Progress:
    """The progress of a warm start."""

    step: int
    steps: int

    loss: float
    """Mean of this step's batch, in nats per token of the policy."""


@dataclass(frozen=True)
class Row:
    """One conversation in tokens."""

    tokens: list[int]

    learnt: list[bool]
    """Which of them the policy writes itself."""


def warm_start(
    conversations: Sequence[Sequence[Mapping[str, str]]],
    out_dir: Path,
    *,
    renderer_name: str,
    seed: int = 0,
    steps: int = WarmStartSettings.steps,
    base: Path | None = None,
    device: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Train a policy on ``conversations`` and return its Hugging Face directory.

    Blocks for about a minute for a tiny policy, and many for a pretrained model; call it from a thread. The same input
    gives the same policy on the same machine, and a policy that is already there is returned at once.

    Args:
        conversations: Chats of ``{"role", "content"}`` messages, each from the system message to an answer of the
            assistant. The policy learns to answer as they do, mistakes included.
        out_dir: The policy becomes a directory below this one, named by a hash of the input. It appears complete or
            not at all.
        renderer_name: See :attr:`WarmStartSettings.renderer_name`.
        seed: See :attr:`WarmStartSettings.seed`.
        steps: See :attr:`WarmStartSettings.steps`.
        base: The directory of a pretrained model, all of whose weights are trained; None makes a tiny policy.
        device: Where a pretrained model is trained: ``cpu``, ``cuda`` or ``cuda:1``; None is CUDA where torch sees a
            GPU. A tiny policy is always trained on the CPU.
        progress: Called after each step, in this thread. Its exception ends the training and leaves nothing behind.

    Raises:
        UsageError: There is nothing to learn from, a conversation can't be rendered, or the policy's directory is there
            without its record. Or there is no such device.
        MissingDependencyError: torch, transformers or the cookbook is not installed.
    """
    more: dict[str, Any] = {} if base is None else {**PRETRAINED_SETTINGS, "base": str(base)}
    settings = WarmStartSettings(renderer_name=renderer_name, seed=seed, steps=steps, **more)
    final = out_dir / f"policy-{_digest(conversations, settings)}"
    if (final / RECORD_NAME).is_file():
        return final
    if final.exists():
        raise UsageError(f"{final} is a policy without its {RECORD_NAME}: remove that directory, and it is made anew")
    if not any(message["role"] == "assistant" for conversation in conversations for message in conversation):
        raise UsageError("a warm start needs conversations with answers of the assistant; there are none")
    with publishing_once(final) as building:
        building.mkdir()
        record = _build(conversations, building, settings, device, progress)
        (building / RECORD_NAME).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return final


def conversation_encoder(
    tokenizer: PreTrainedTokenizerFast, renderer_name: str
) -> Callable[[Sequence[Mapping[str, str]]], Row]:
    """Return a function that encodes a conversation exactly as an RL episode with the same messages accumulates it.

    It raises UsageError where a conversation is not: messages, answer, user, answer, user, …, answer.

    Raises:
        UsageError: There is no such renderer, or it can't write a chat with this tokenizer.
        MissingDependencyError: The cookbook is not installed.
    """
    with policy.training_stack():
        from harbor_gym.adapters.tinker.codec import codec_of
    codec = codec_of(renderer_name, tokenizer)
    stop = codec.stop[0]
    end = [stop] if isinstance(stop, int) else tokenizer.encode(stop, add_special_tokens=False)

    def encode(conversation: Sequence[Mapping[str, str]]) -> Row:
        roles = [message["role"] for message in conversation]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        turns = roles[first:]
        if turns != (["assistant", "user"] * len(turns))[: len(turns)] or len(turns) % 2 == 0:
            raise UsageError(f"a conversation must go on as assistant, user, …, assistant; this one has {roles}")
        tokens = codec.prompt([{"role": m["role"], "content": m["content"]} for m in conversation[:first]])  # pyright: ignore[reportArgumentType]  # roles were checked above
        learnt = [False] * len(tokens)
        answer: list[int] = []
        for message in conversation[first:]:
            if message["role"] == "assistant":
                added = answer = (
                    tokenizer.encode(message["content"], add_special_tokens=False, split_special_tokens=True) + end
                )
            else:
                added = codec.next_turn(answer, message["content"])
            tokens = tokens + added
            learnt += [message["role"] == "assistant"] * len(added)
        return Row(tokens, learnt)

    return encode


def _build(
    conversations: Sequence[Sequence[Mapping[str, str]]],
    directory: Path,
    settings: WarmStartSettings,
    device: str | None,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Any]:
    texts = (message["content"] for conversation in conversations for message in conversation)
    if settings.base is None:
        tokenizer = policy.build_tokenizer(texts, settings.vocab_size)
        model = policy.build_model(
            tokenizer, hidden_size=settings.hidden_size, layers=settings.layers, seed=settings.seed
        )
    else:
        model, tokenizer = policy.load_policy(settings.base)
        model.to(_device_of(device))
    encode = conversation_encoder(tokenizer, settings.renderer_name)
    rows = [encode(conversation) for conversation in conversations]
    longest = max(len(row.tokens) for row in rows)
    if longest > (most := model.config.max_position_embeddings):
        raise UsageError(f"a conversation has {longest} tokens, and the model's context is {most}")
    losses = _train(model, rows, settings, progress)
    policy.save_policy(model, tokenizer, directory)
    return {
        "format_version": POLICY_FORMAT,
        "settings": dataclasses.asdict(settings),
        "conversations": len(rows),
        "tokens_per_conversation": sum(len(row.tokens) for row in rows) / len(rows),
        "parameters": model.num_parameters(),
        "final_loss": losses[-1],
    }


def _device_of(name: str | None) -> torch.device:
    from harbor_gym.embedded.engine.devices import device_of

    try:
        return device_of(name)
    except ValueError as exc:
        raise UsageError(str(exc)) from exc


def _train(
    model: PreTrainedModel,
    rows: Sequence[Row],
    settings: WarmStartSettings,
    progress: Callable[[Progress], None] | None,
) -> list[float]:
    import torch

    optimizers = _optimizers(model, settings)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(entry, lambda step: _rate(step, settings.steps)) for entry in optimizers
    ]
    batches = _batches(rows, settings)
    # Batches are of rows alike in length: a mean over each would make tokens of short conversations count for more.
    typical = settings.batch_size * sum(sum(row.learnt) for row in rows) / len(rows)
    losses: list[float] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        for step in range(1, settings.steps + 1):
            model.zero_grad()
            each = _add_gradients(model, next(batches), typical, settings.at_once)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for entry in (*optimizers, *schedules):
                entry.step()
            losses.append(fmean(each))
            if progress is not None:
                progress(Progress(step, settings.steps, losses[-1]))
    finally:
        torch.set_num_threads(threads)
    return losses


def _optimizers(model: PreTrainedModel, settings: WarmStartSettings) -> list[torch.optim.Optimizer]:
    """AdamW; for a tiny policy's matrices Muon, which needs half the steps there."""
    import torch

    from harbor_gym.embedded.muon import Muon

    embeddings = set(model.get_input_embeddings().parameters())
    is_tiny = settings.base is None
    matrices = [weight for weight in model.parameters() if is_tiny and weight.ndim == 2 and weight not in embeddings]
    others = [weight for weight in model.parameters() if not any(weight is known for known in matrices)]
    adam = torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, lr=settings.learning_rate, weight_decay=0.01), adam] if is_tiny else [adam]


def _add_gradients(model: PreTrainedModel, batch: Sequence[Row], typical: float, at_once: int) -> list[float]:
    """Add a batch's gradient to the weights' own, and return the loss on each token of the policy's."""
    import torch

    from harbor_gym.embedded.engine.scoring import add_gradients

    scored = add_gradients(
        model,
        [row.tokens[:-1] for row in batch],
        [row.tokens[1:] for row in batch],
        lambda _, some: -torch.cat(some).sum() / typical,
        [row.learnt[1:] for row in batch],
        at_once=at_once,
    )
    return [-logprob for row in scored for logprob in row.tolist()]


def _batches(rows: Sequence[Row], settings: WarmStartSettings) -> Iterator[list[Row]]:
    """Yield batches without end, each epoch in a new order, of rows that are about as long as each other."""
    import torch

    generator = torch.Generator().manual_seed(settings.seed)
    pool = 4 * settings.batch_size
    waiting: list[int] = []
    while True:
        while len(waiting) < pool:
            waiting += torch.randperm(len(rows), generator=generator).tolist()
        chunk = sorted(waiting[:pool], key=lambda index: len(rows[index].tokens))
        del waiting[:pool]
        for start in torch.randperm(4, generator=generator).tolist():
            yield [rows[index] for index in chunk[start * settings.batch_size : (start + 1) * settings.batch_size]]


def _rate(step: int, steps: int) -> float:
    warmup = max(1, steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def _digest(conversations: Sequence[Sequence[Mapping[str, str]]], settings: WarmStartSettings) -> str:
    plain = [[[message["role"], message["content"]] for message in conversation] for conversation in conversations]
    whole = json.dumps([POLICY_FORMAT, dataclasses.asdict(settings), plain])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
