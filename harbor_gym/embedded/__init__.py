"""The embedded training backend: a tiny policy for a task, and a Tinker-compatible server for it.

:func:`ensure_policy` finds or builds the policy; :class:`harbor_gym.embedded.server.TrainingServer` serves it. Both
need the extras ``tinker`` and ``server``; importing this package needs neither.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym import sandboxes
from harbor_gym._runtime.cache import cache_dir, locked
from harbor_gym.errors import HarborGymError, TaskError
from harbor_gym.formats import prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from harbor.models.trial.config import AgentConfig

    from harbor_gym.embedded.warm_start import Progress

DEMONSTRATIONS = 200
"""Number of episodes that the demonstrator plays for a policy."""

STEPS = 200
"""Optimizer steps of the warm start."""

_AGENT_CONCURRENCY = 12
"""Concurrent demonstrations with an agent, which waits for each command's whole duration."""

_DECIDING_SOURCES = (
    "agent_demonstrations.py",
    "demonstrations.py",
    "demonstrator.py",
    "policy.py",
    "warm_start.py",
)
"""Files of this package whose content changes a task's policy."""


async def ensure_policy(
    task_dir: Path,
    *,
    sandbox: str,
    renderer_name: str,
    agent: AgentConfig | str | None = None,
    seed: int = 0,
    rebuild: bool = False,
    progress: Callable[[str, int, int, float | None], None] | None = None,
) -> Path:
    """Return the warm-started policy for a task: from the cache, from the package, or made now in a few minutes.

    A scripted demonstrator plays the task in a real sandbox, and the policy learns to imitate it. Concurrent callers
    build it once. The result is a Hugging Face directory: the ``model_name`` for renderer, tokenizer and server.

    Args:
        task_dir: A Harbor task directory with a demonstrator.
        sandbox: See ``TerminalEnvConfig.sandbox``. The demonstrator plays in ``local`` instead if that can run, since
            it is faster; terminals show the same in both, so one policy serves both.
        renderer_name: The policy's renderer in the cookbook.
        agent: The agent whose model the policy will be: the demonstrator then plays behind the gateway, and the policy
            learns the agent's prompts. None is this package's own loop.
        seed: Seed of the demonstrator's choices and the policy's weights.
        rebuild: Make the policy even if it is cached or shipped.
        progress: Called as ``progress(phase, done, total, loss)`` while a policy is made, perhaps in another thread;
            ``phase`` is ``"demonstrations"``, ``"warm start"`` or ``"shipped policy"``; only a warm start has a loss.

    Raises:
        TaskError: The task is malformed or has no demonstrator.
        UsageError: The agent does not read the demonstrator's message format.
        MissingDependencyError: An extra is not installed.
        HarborGymError: The sandbox failed repeatedly.
    """
    key = await asyncio.to_thread(policy_key, task_dir, renderer_name, agent, seed)
    folder = cache_dir() / "policies" / key
    async with locked(f"policy-{key}"):
        if rebuild:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if (known := _complete_policy(folder)) is not None:
            return known
        if not rebuild and agent is None and (shipped := await _shipped_policy(task_dir, renderer_name, seed, folder)):
            if progress is not None:
                progress("shipped policy", 1, 1, None)
            return shipped
        from harbor_gym.embedded.demonstrations import play_demonstrations
        from harbor_gym.embedded.policy import training_stack

        with training_stack():  # report a missing extra before the demonstrator plays for a minute
            import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]  # presence check
            import transformers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # presence check
        played = await play_demonstrations(
            task_dir,
            sandbox=await asyncio.to_thread(_quickest, sandbox),
            agent=agent,
            episodes=DEMONSTRATIONS,
            seed=seed,
            **({} if agent is None else {"concurrency": _AGENT_CONCURRENCY}),
            progress=None if progress is None else lambda done, total: progress("demonstrations", done, total, None),
        )
        conversations = [list(demonstration.messages) for demonstration in played]
        # One at a time on a machine: torch's waiting threads spin, so that two warm starts block each other.
        async with locked("warm-start"):
            return await _warm_start(conversations, folder, renderer_name, seed, progress)


async def _warm_start(
    conversations: list[list[dict[str, str]]],
    folder: Path,
    renderer_name: str,
    seed: int,
    progress: Callable[[str, int, int, float | None], None] | None,
) -> Path:
    from harbor_gym.embedded.warm_start import warm_start

    abandoned = threading.Event()

    def report(now: Progress) -> None:
        if abandoned.is_set():
            raise asyncio.CancelledError
        if progress is not None:
            progress("warm start", now.step, now.steps, now.loss)

    try:
        return await asyncio.to_thread(
            warm_start,
            conversations,
            folder,
            renderer_name=renderer_name,
            seed=seed,
            steps=STEPS,
            progress=report,
        )
    finally:
        # A thread can't be cancelled; it stops at its next step.
        abandoned.set()


def _complete_policy(folder: Path) -> Path | None:
    from harbor_gym.embedded.warm_start import RECORD_NAME

    return next((record.parent for record in sorted(folder.glob(f"policy-*/{RECORD_NAME}"))), None)


async def _shipped_policy(task_dir: Path, renderer_name: str, seed: int, folder: Path) -> Path | None:
    from harbor_gym.embedded.shipped import SEED, unpack_policy

    return await asyncio.to_thread(unpack_policy, task_dir, renderer_name, folder) if seed == SEED else None


def _quickest(sandbox: str) -> str:
    try:
        sandboxes.preflight(sandboxes.environment_config(sandboxes.LOCAL))
    except HarborGymError:
        return sandbox
    return sandboxes.LOCAL


def policy_key(task_dir: Path, renderer_name: str, agent: AgentConfig | str | None, seed: int) -> str:
    """Return the name of a task's policy in the cache: a digest of all its inputs.

    Raises:
        TaskError: ``task_dir`` is not a task.
    """
    if not (task_dir / "task.toml").is_file():
        raise TaskError(f"{task_dir} is not a Harbor task directory: it has no task.toml")
    digest = hashlib.sha256()
    player = agent if agent is None or isinstance(agent, str) else agent.model_dump_json()
    for word in (prompts.PROMPT_FORMAT, renderer_name, player or "", str(seed), str(DEMONSTRATIONS), str(STEPS)):
        digest.update(word.encode() + b"\0")
    for name in _DECIDING_SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    for path in sorted(path for path in task_dir.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(task_dir)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
