"""Train the letters' policy with TRL, by tool calls and by keystrokes, with several seeds, and draw the curves.

    python recipes/trl_learning.py runs/trl-learning --output docs/images/trl_learning.svg

Finished runs are not repeated. The figure shows each agent's mean over the seeds, and their range.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from matplotlib.figure import Figure
from tiny_trl.runs import METRICS_NAME, train_letters

from harbor_gym.cli.shared import one_line_errors

WAYS = {"bash": "bash, by environment_factory", "terminal": "terminal, by rollout_func"}
COLOURS = {"bash": "#0072B2", "terminal": "#D55E00"}
LAST = 5


def main(
    runs: Annotated[Path, typer.Argument(help="Folder of the runs.")] = Path("runs/trl-learning"),
    output: Annotated[Path, typer.Option(help="The figure, SVG.")] = Path("trl_learning.svg"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each agent.")] = 3,
    steps: Annotated[int, typer.Option(min=LAST, help="Optimizer steps of a run.")] = 16,
    group_size: Annotated[int, typer.Option(min=2, help="Episodes of a step.")] = 16,
    env: Annotated[str, typer.Option(help="Sandbox.")] = "local",
) -> None:
    """Train, print where each run began and ended, and draw."""
    curves: dict[str, list[list[float]]] = {agent: [] for agent in WAYS}
    with one_line_errors():
        for seed in range(seeds):
            for agent in WAYS:
                folder = runs / f"{agent}-seed{seed}"
                if not (folder / METRICS_NAME).exists():
                    train_letters(folder, agent=agent, sandbox=env, steps=steps, group_size=group_size, seed=seed)
                rewards = read_rewards(folder / METRICS_NAME)
                curves[agent].append(rewards)
                typer.echo(f"{agent:8} seed {seed}: first {rewards[0]:.2f}, mean of the last {LAST} {end(rewards):.2f}")
    draw(curves, output)
    typer.echo(f"figure: {output}")


def read_rewards(path: Path) -> list[float]:
    """Return each step's mean reward."""
    return [float(json.loads(line)["reward"]) for line in path.read_text(encoding="utf-8").splitlines()]


def end(rewards: Sequence[float]) -> float:
    """Return the mean of the last steps."""
    return fmean(rewards[-LAST:])


def draw(curves: Mapping[str, Sequence[Sequence[float]]], path: Path) -> None:
    """Draw the means over the seeds, and their ranges as bands."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    panel = figure.subplots()
    for agent, runs in curves.items():
        columns = list(zip(*runs, strict=True))
        steps = range(1, len(columns) + 1)
        panel.plot(steps, [fmean(column) for column in columns], color=COLOURS[agent], label=WAYS[agent])
        low, high = [min(column) for column in columns], [max(column) for column in columns]
        panel.fill_between(steps, low, high, color=COLOURS[agent], alpha=0.15, linewidth=0)
    panel.set(xlabel="optimizer step", ylabel="mean reward of the group", ylim=(-0.03, 1.03))
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", alpha=0.25, linewidth=0.6)
    panel.legend(frameon=False, loc="lower right")
    figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    typer.run(main)
