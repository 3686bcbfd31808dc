"""``harbor-gym demo``: an episode, shown and explained in a minute."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.cli import completion
from harbor_gym.cli.shared import FAILED, echo, loading, one_line_errors, quiet_harbor

if TYPE_CHECKING:
    from harbor_gym.config import TerminalEnvConfig

FAKE_SCRIPT = ("ls\n", "cat notes.txt\n", "echo done > answer\n")
FAKE_TASK = "Read /srv/notes.txt and do what it asks for."
FAKE_OPTIONS = {
    "files": {"/srv/notes.txt": "Write the word done into /srv/answer.\n"},
    "solved_when": {"/srv/answer": "done"},
}

LOCAL_TASK = "task:devops_task"
LOCAL_SCRIPT = (
    "appctl check\n",
    "rm /srv/app/app.pid; appctl check\n",
    "chmod 600 /etc/app/key; appctl check\n",
    "sed -i 's/ap$/app/' /etc/app/app.conf; appctl check\n",
    "appctl start && echo started\n",
)
_SHOWN_LINES = 6


def demo(
    env: Annotated[
        str,
        typer.Option(
            "--env",
            autocompletion=completion.sandboxes,
            help="Sandbox of the second episode; fake plays only the first.",
        ),
    ] = "local",
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep the second episode's trial and recording in this folder.")
    ] = None,
) -> None:
    """Play one episode in memory, then one in a real sandbox where this machine can.

    The first needs no engine at all. The second plays a task that is shipped, if `harbor-gym doctor` finds that
    sandboxes of the kind can be started. Exit code 0: every episode that was played was solved.
    """
    with loading():
        from harbor_gym.checking.doctor import examine, usable

    with one_line_errors(), quiet_harbor():
        solved = asyncio.run(_play_in_memory())
        if env != "fake":
            findings = examine(env)
            if usable(findings).get(env, False):
                solved &= asyncio.run(_play_for_real(env, keep))
                for recording in sorted(keep.glob("*/recording.cast")) if keep is not None else ():
                    echo(f"   kept: {recording}")
            else:
                missing = [item for item in findings if not item.ok and item.is_needed]
                echo(f"\n2. Sandboxes of the kind {env} can't be started here yet:")
                for item in missing:
                    echo(f"   {item.what}: {item.note}" + (f" -> {item.fix}" if item.fix else ""))
    echo(
        "\nNext: harbor-gym init my-task          a task of your own\n"
        "      harbor-gym play task:devops_task  solve one yourself\n"
        "      harbor-gym train --help           train a policy"
    )
    if not solved:
        raise typer.Exit(FAILED)


async def _play_in_memory() -> bool:
    from harbor_gym.config import TerminalEnvConfig
    from harbor_gym.testing import write_tiny_task

    with tempfile.TemporaryDirectory(prefix=temporary_prefix("demo"), ignore_cleanup_errors=True) as folder:
        task_dir = write_tiny_task(Path(folder) / "task")
        (task_dir / "instruction.md").write_text(FAKE_TASK + "\n", encoding="utf-8")
        config = TerminalEnvConfig(
            task_dir=task_dir,
            sandbox="harbor_gym.testing:FakeEnvironment",
            sandbox_options=FAKE_OPTIONS,
            confirm_task_complete=False,
        )
        echo("1. An episode in memory: a fake sandbox, no engine")
        return await _play(config, FAKE_SCRIPT)


async def _play_for_real(env: str, keep: Path | None) -> bool:
    from harbor_gym.config import TerminalEnvConfig

    config = TerminalEnvConfig(task_dir=Path(LOCAL_TASK), sandbox=env, confirm_task_complete=False, trials_dir=keep)
    echo(f"\n2. An episode of {LOCAL_TASK} on {env} (its image is built the first time, which can take minutes)")
    return await _play(config, LOCAL_SCRIPT)


async def _play(config: TerminalEnvConfig, script: Sequence[str]) -> bool:
    """Play a script and finish; print each turn, and return whether the reward was 1."""
    from harbor_gym.env import AsyncTerminalGymEnv

    begun = time.monotonic()
    async with AsyncTerminalGymEnv(config) as env:
        observation, info = await env.reset()
        echo(f"   instruction: {_first_lines(info.get('instruction', ''), 2)}")
        for turn, keystrokes in enumerate(script, start=1):
            observation, *_ = await env.step([(keystrokes, 10.0)])
            echo(f"   turn {turn} types {keystrokes.strip()}\n{_indented(observation)}")
        _, reward, _, info = await env.finish()
    seconds = time.monotonic() - begun
    echo(f"   {info.get('end_reason')}, reward {reward:g}, {seconds:.1f} s")
    return reward == 1.0


def _first_lines(text: str, most: int) -> str:
    lines = text.strip().splitlines()
    return " ".join(lines[:most]) + (" …" if len(lines) > most else "")


def _indented(text: str) -> str:
    lines = text.rstrip().splitlines()
    shown = lines if len(lines) <= _SHOWN_LINES else [*lines[: _SHOWN_LINES - 1], "…", lines[-1]]
    return "\n".join(f"     | {line}" for line in shown)
