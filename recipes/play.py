"""Play a task in your own terminal: every key goes into the sandbox, C-] hands in, and the verifier scores you."""

import codecs
import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Generator
from typing import Any

import gymnasium as gym
import typer

import harbor_gym
from harbor_gym.adapters.gymnasium import terminus_message

HAND_IN = "\x1d"  # C-]
TICK_SEC = 0.05


@contextlib.contextmanager
def raw_keyboard() -> Generator[int]:
    """Pass on every key as it is, also C-c."""
    keyboard = sys.stdin.fileno()
    saved = tty.setraw(keyboard)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)


def main(task_dir: str = "tasks/devops_task", env: str = "local") -> None:
    """Show the instruction, then the terminal."""
    size = os.get_terminal_size()
    terminal = harbor_gym.TerminalConfig(columns=max(size.columns, 20), rows=max(size.lines, 5), min_wait_sec=0)
    budgets: dict[str, Any] = {"max_turns": None, "time_limit_sec": 86_400, "confirm_task_complete": False}
    interface: dict[str, Any] = {"action": "message", "render_mode": "human", "terminal": terminal}
    game = gym.make("HarborTerminal-v0", task_dir=task_dir, sandbox=env, **interface, **budgets)
    _, info = game.reset()
    typer.prompt(f"\x1b[2J\x1b[H{info['instruction']}\nC-] hands in. Enter starts", default="", show_default=False)
    over, reward, decoder = False, 0.0, codecs.getincrementaldecoder("utf-8")("replace")
    with raw_keyboard() as keyboard:
        while not over:
            ready, _, _ = select.select([keyboard], [], [], TICK_SEC)
            keys = decoder.decode(os.read(keyboard, 4096)) if ready else ""
            typed, handed_in, _ = keys.partition(HAND_IN)
            action = terminus_message(typed, duration_sec=TICK_SEC, task_complete=bool(handed_in))
            _, reward, terminated, truncated, info = game.step(action)
            over = terminated or truncated
    typer.echo(f"\x1b[2J\x1b[H{info['end_reason']}, reward {reward}")
    game.close()


if __name__ == "__main__":
    typer.run(main)
