"""Run a scripted policy in many sandboxes with ``gym.make_vec``; print episodes per minute and the mean reward."""

import time
from typing import Annotated

import gymnasium as gym
import numpy as np
import typer

import harbor_gym

gym.register_envs(harbor_gym)

SCRIPT = (
    "rm /srv/app/app.pid\n",
    "chmod 600 /etc/app/key\n",
    "sed -i 's/ap$/app/' /etc/app/app.conf\n",
    "appctl start\n",
    "<task_complete/>",
)
"""Keystrokes that solve tasks/devops_task, one line per turn."""


def main(
    task_dir: Annotated[str, typer.Option(help="Harbor task directory.")] = "tasks/devops_task",
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, …")] = "local",
    num_envs: Annotated[int, typer.Option(min=1)] = 8,
    episodes: Annotated[int, typer.Option(min=1, help="Stop after this number of episodes.")] = 16,
) -> None:
    """Run episodes until there are enough."""
    envs = gym.make_vec(
        "HarborTerminal-v0", num_envs=num_envs, task_dir=task_dir, sandbox=env, confirm_task_complete=False
    )
    started = time.monotonic()
    envs.reset(seed=0)
    turns = np.zeros(num_envs, dtype=int)
    rewards: list[float] = []
    while len(rewards) < episodes:
        _, reward, terminated, truncated, infos = envs.step([SCRIPT[turn] for turn in turns])
        done = terminated | truncated
        failed = infos.get("_infrastructure_error", np.zeros(num_envs, dtype=bool))
        rewards += reward[done & ~failed].tolist()  # an infrastructure failure is not a reward
        turns = np.where(done, -1, turns + 1)  # the step after the last one resets, and its action is ignored
    minutes = (time.monotonic() - started) / 60
    envs.close()
    typer.echo(f"{len(rewards)} episodes, mean reward {np.mean(rewards):.2f}, {len(rewards) / minutes:.0f} a minute")


if __name__ == "__main__":
    typer.run(main)
