"""A random agent in a task's terminal: the smallest use of the environment, and a lower bound for every agent."""

from typing import Annotated

import gymnasium as gym
import typer

import harbor_gym

gym.register_envs(harbor_gym)


def main(
    task_dir: Annotated[str, typer.Option(help="Harbor task directory.")] = "tasks/devops_task",
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, …")] = "local",
    episodes: Annotated[int, typer.Option(min=1)] = 1,
    max_turns: Annotated[int, typer.Option(min=1)] = 10,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Type random keys until the turns run out, and print the verifier's result."""
    terminal = gym.make("HarborTerminal-v0", task_dir=task_dir, sandbox=env, max_turns=max_turns)
    terminal.action_space.seed(seed)
    for episode in range(episodes):
        observation, info = terminal.reset(seed=seed + episode)
        reward, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            action = terminal.action_space.sample()
            observation, reward, terminated, truncated, info = terminal.step(action)
            typer.echo(f"turn {info['turn']:>2}: typed {action!r}, saw {str(observation)[-60:]!r}")
        typer.echo(f"episode {episode + 1}: {info['end_reason']}, reward {reward}")
    terminal.close()


if __name__ == "__main__":
    typer.run(main)
