"""A scripted agent that solves tasks/devops_task: it reads the terminal, and a table maps the output to keystrokes."""

import re
from typing import Annotated

import gymnasium as gym
import typer

import harbor_gym

gym.register_envs(harbor_gym)

RULES = (
    (r"^app: .*pid", "rm /srv/app/app.pid; appctl check\n"),
    (r"^app: .* has mode", "chmod 600 /etc/app/key; appctl check\n"),
    (r"^app: .*spool", "sed -i 's/ap$/app/' /etc/app/app.conf; appctl check\n"),
    (r"^app: settings ok", "appctl start && echo solved\n"),
    (r"^solved$", "<task_complete/>"),
)
"""Pattern of the terminal's last output, and the keystrokes that answer it."""


def choose(observation: str) -> str:
    """Return the keystrokes of the rule that matches furthest down, or else a call of the task's own tool."""
    seen = [(match.start(), keys) for rule, keys in RULES for match in re.finditer(rule, observation, re.MULTILINE)]
    return max(seen, default=(0, "appctl check\n"))[1]


def main(
    task_dir: Annotated[str, typer.Option(help="Harbor task directory.")] = "tasks/devops_task",
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, …")] = "local",
    max_turns: Annotated[int, typer.Option(min=1)] = 10,
) -> None:
    """Run one episode and print it."""
    terminal = gym.make(
        "HarborTerminal-v0", task_dir=task_dir, sandbox=env, max_turns=max_turns, confirm_task_complete=False
    )
    observation, info = terminal.reset(seed=0)
    typer.echo(f"{info['instruction']}\n{observation}")
    reward, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        observation, reward, terminated, truncated, info = terminal.step(choose(str(observation)))
        typer.echo(observation)
    typer.echo(f"{info['end_reason']}, reward {reward}")
    terminal.close()


if __name__ == "__main__":
    typer.run(main)
