"""Policies that are shipped with the package, so that a first run needs neither demonstrations nor a warm start.

A policy is shipped with bfloat16 weights (4 MB) and unpacked to float32. It is valid only for the task and the prompts
that it was trained on; otherwise a policy is made as for any other task. ``make policy`` rebuilds the shipped ones.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from harbor_gym._runtime.files import publishing_once
from harbor_gym.embedded.policy import training_stack
from harbor_gym.embedded.warm_start import POLICY_FORMAT
from harbor_gym.formats import prompts

SEED = 0
"""Seed of every shipped policy."""

POLICIES = Path(__file__).with_name("policies")
"""The folder with one folder per task that has a shipped policy."""

KEY_NAME = "key.txt"
"""A shipped policy's file with its fingerprint."""

_WEIGHTS = "model.safetensors"
_SHOWN = ("environment", "demonstrations", "instruction.md", "task.toml")
"""The parts of a task that determine its demonstrations."""


def policy_fingerprint(task_dir: Path, renderer_name: str) -> str:
    """Return a digest of the task's contents, the prompts and the renderer that a policy was trained on."""
    digest = hashlib.sha256(f"{POLICY_FORMAT}\0{prompts.PROMPT_FORMAT}\0{renderer_name}\0".encode())
    for path in sorted(path for name in _SHOWN for path in (task_dir / name, *(task_dir / name).rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(task_dir).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def unpack_policy(task_dir: Path, renderer_name: str, out_dir: Path) -> Path | None:
    """Write a task's shipped policy below ``out_dir``, and return its directory; None if none is shipped.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
    """
    fingerprint = policy_fingerprint(task_dir, renderer_name)
    keys = sorted(POLICIES.glob(f"*/{KEY_NAME}"))
    source = next((key.parent for key in keys if key.read_text(encoding="utf-8").strip() == fingerprint), None)
    if source is None:
        return None
    final = out_dir / f"policy-shipped-{fingerprint}"
    with publishing_once(final) as building:
        copy_policy(source, building, "float32")
    return final


def copy_policy(source: Path, target: Path, dtype: str) -> None:
    """Copy a policy's folder, with its weights as ``dtype``, a name in torch."""
    with training_stack():
        import torch
        from safetensors.torch import load_file, save_file
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(_WEIGHTS, KEY_NAME))
    weights = load_file(source / _WEIGHTS)
    converted = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
    save_file(converted, target / _WEIGHTS, metadata={"format": "pt"})
    (target / _WEIGHTS).chmod(0o644)
