"""The embedded training backend: a policy for a task, and a Tinker-compatible server for it.

:func:`ensure_policy` finds or builds the policy, a tiny one or a pretrained model that was fine-tuned;
:class:`harbor_gym.embedded.server.TrainingServer` serves it. Both need the extras ``tinker`` and ``server``; importing
this package needs neither.
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
from harbor_gym.types import ActionFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from harbor.models.trial.config import AgentConfig

    from harbor_gym.embedded.warm_start import Progress

DEMONSTRATIONS = 200
"""Number of episodes that the demonstrator plays for a policy."""

STEPS = 200
"""Optimizer steps of the warm start."""

PRETRAINED_DEMONSTRATIONS = 64
"""The same for a pretrained model, which needs fewer and learns each more slowly."""

PRETRAINED_EPOCHS = 1
"""Passes of a pretrained model's warm start over the demonstrations."""

_AGENT_CONCURRENCY = 12
"""Concurrent demonstrations with an agent, which waits for each command's whole duration."""

_DECIDING_SOURCES = (
    "agent_demonstrations.py",
    "demonstrations.py",
    "demonstrator.py",
    "engine/scoring.py",
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
    action_format: ActionFormat = ActionFormat.TERMINUS_JSON,
    seed: int = 0,
    rebuild: bool = False,
    base: Path | None = None,
    demonstrations: int | None = None,
    device: str | None = None,
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
        action_format: How the policy writes its messages: one of ``demonstrator.WRITTEN_FORMATS``.
        seed: Seed of the demonstrator's choices and the policy's weights.
        rebuild: Make the policy even if it is cached or shipped.
        base: The directory of a pretrained model to fine-tune; None makes a tiny policy.
        demonstrations: Episodes that the demonstrator plays; None is :data:`DEMONSTRATIONS`, or with ``base``
            :data:`PRETRAINED_DEMONSTRATIONS`. With ``base`` it plays twice as many, and half of those that are learnt
            from solved the task.
        device: Where a pretrained model is fine-tuned, see :func:`harbor_gym.embedded.warm_start.warm_start`.
        progress: Called as ``progress(phase, done, total, loss)`` while a policy is made, perhaps in another thread;
            ``phase`` is ``"demonstrations"``, ``"warm start"`` or ``"shipped policy"``; only a warm start has a loss.

    Raises:
        TaskError: The task is malformed or has no demonstrator.
        UsageError: The agent does not read the demonstrator's message format.
        MissingDependencyError: An extra is not installed.
        HarborGymError: The sandbox failed repeatedly.
    """
    episodes = demonstrations or (DEMONSTRATIONS if base is None else PRETRAINED_DEMONSTRATIONS)
    key = await asyncio.to_thread(
        policy_key, task_dir, renderer_name, agent, seed, action_format=action_format, base=base, episodes=episodes
    )
    is_usual = agent is None and action_format is ActionFormat.TERMINUS_JSON
    can_be_shipped = not rebuild and is_usual and base is None and demonstrations is None
    folder = cache_dir() / "policies" / key
    async with locked(f"policy-{key}"):
        if rebuild:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if (known := _complete_policy(folder)) is not None:
            return known
        if can_be_shipped and (shipped := await _shipped_policy(task_dir, renderer_name, seed, folder)):
            if progress is not None:
                progress("shipped policy", 1, 1, None)
            return shipped
        from harbor_gym.embedded.demonstrations import half_solved, play_demonstrations
        from harbor_gym.embedded.policy import training_stack

        with training_stack():  # report a missing extra before the demonstrator plays for a minute
            import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]  # presence check
            import transformers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # presence check
        played = await play_demonstrations(
            task_dir,
            sandbox=await asyncio.to_thread(_quickest, sandbox),
            agent=agent,
            action_format=action_format,
            episodes=episodes if base is None else 2 * episodes,
            seed=seed,
            **({} if agent is None else {"concurrency": _AGENT_CONCURRENCY}),
            progress=None if progress is None else lambda done, total: progress("demonstrations", done, total, None),
        )
        learnt = played if base is None else half_solved(played, episodes)
        conversations = [list(demonstration.messages) for demonstration in learnt]
        # One at a time on a machine: torch's waiting threads spin, so that two warm starts block each other.
        async with locked("warm-start"):
            return await _warm_start(conversations, folder, renderer_name, seed, base, device, progress)


async def _warm_start(
    conversations: list[list[dict[str, str]]],
    folder: Path,
    renderer_name: str,
    seed: int,
    base: Path | None,
    device: str | None,
    progress: Callable[[str, int, int, float | None], None] | None,
) -> Path:
    from harbor_gym.embedded.warm_start import PRETRAINED_SETTINGS, warm_start

    abandoned = threading.Event()

    def report(now: Progress) -> None:
        if abandoned.is_set():
            raise asyncio.CancelledError
        if progress is not None:
            progress("warm start", now.step, now.steps, now.loss)

    epoch = -(-len(conversations) // PRETRAINED_SETTINGS["batch_size"])
    try:
        return await asyncio.to_thread(
            warm_start,
            conversations,
            folder,
            renderer_name=renderer_name,
            seed=seed,
            steps=STEPS if base is None else PRETRAINED_EPOCHS * epoch,
            base=base,
            device=device,
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


def policy_key(
    task_dir: Path,
    renderer_name: str,
    agent: AgentConfig | str | None,
    seed: int,
    *,
    action_format: ActionFormat = ActionFormat.TERMINUS_JSON,
    base: Path | None = None,
    episodes: int = DEMONSTRATIONS,
) -> str:
    """Return the name of a task's policy in the cache: a digest of all its inputs.

    A pretrained model counts by its files' sizes and times.

    Raises:
        TaskError: ``task_dir`` is not a task.
    """
    if not (task_dir / "task.toml").is_file():
        raise TaskError(f"{task_dir} is not a Harbor task directory: it has no task.toml")
    digest = hashlib.sha256()
    player = agent if agent is None or isinstance(agent, str) else agent.model_dump_json()
    words = [prompts.PROMPT_FORMAT, renderer_name, player or "", action_format, str(seed), str(episodes), str(STEPS)]
    if base is not None:
        words += [str(PRETRAINED_EPOCHS)]
        for path in sorted(base.iterdir()):
            words += [str(path.resolve()), str((status := path.stat()).st_size), str(status.st_mtime_ns)]
    for word in words:
        digest.update(word.encode() + b"\0")
    for name in _DECIDING_SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    for path in sorted(path for path in task_dir.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(task_dir)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
