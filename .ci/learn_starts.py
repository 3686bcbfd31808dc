"""Compare where episodes begin: at the task's start, and in solved episodes, from their end backwards.

.venv/bin/python .ci/learn_starts.py                       # two ways x three seeds, an hour; the same command continues
.venv/bin/python .ci/learn_starts.py --parallel 2          # further flags are those of `harbor-gym sweep`

Prints a table of evaluations, which begin at the task's start, from runs/learn-starts, and draws them as curves.png
there.
"""

import subprocess
import sys
from pathlib import Path
from statistics import fmean

from learn_context import draw

from harbor_gym._runtime.console.tables import markdown_table
from harbor_gym.evaluation.best import is_finished, read_evaluations
from harbor_gym.report import find_runs, read_metrics
from harbor_gym.report.metrics import METRICS_NAME

FOLDER = Path("runs/learn-starts")
SOURCE = FOLDER / "source"
"""A run of the policy as it begins, whose solved episodes are the starts."""

WAYS = {
    "the task's start": (),
    "backward": ("--start-from", str(SOURCE), "--start-where", "reward=1", "--start-turn", "backward"),
}
COMMAND = (sys.executable, "-m", "harbor_gym")
PLAYED = ("--env", "local", "--backend", "local", "--zero-reward-on-limit")
SETTING = ("--learning-rates", "1e-3", "--num-batches", "16", "--eval-every", "4", "--eval-temperature", "1")
EPISODES = ("--test-episodes", "16")
FIRST = ("--seed", "0", "--num-batches", "4", "--learning-rate", "1e-6")
"""A rate at which its policy stays as it is."""

type Point = tuple[float, float]
"""Tokens that the run had sampled for training before an evaluation, and its reward."""


def main(*flags: str) -> None:
    """Run the sweeps, print the table and draw the figure."""
    task = "task:devops_task"
    if not is_finished(SOURCE):
        begins = ("--resume", str(SOURCE)) if SOURCE.exists() else (task, "--log-path", str(SOURCE), *PLAYED, *FIRST)
        subprocess.run((*COMMAND, "train", *begins), check=True)
    for name, starts in WAYS.items():
        sweep = (*COMMAND, "sweep", task, "--output", str(folder(name)), *PLAYED, *SETTING, *EPISODES)
        subprocess.run((*sweep, *starts, *flags), check=True)
    runs = {name: [list(evaluations(run)) for run in find_runs([folder(name)])] for name in WAYS}
    heads = ("episodes begin at", *(f"after {item.batch}" for item in read_evaluations(one_run())))
    rows = [(name, *(f"{y:.2f} ({x / 1000:.1f}k)" for x, y in means(of_way))) for name, of_way in runs.items()]
    print(markdown_table(heads, rows, right=range(1, len(heads))))
    curves = {name: tuple(map(list, zip(*means(of_way), strict=True))) for name, of_way in runs.items()}
    draw(curves, FOLDER / "curves.png", "mean reward of evaluations")


def folder(way: str) -> Path:
    """Return the sweep's folder of a way."""
    return FOLDER / way.replace(" ", "-").replace("'", "")


def one_run() -> Path:
    """Return the folder of any run."""
    return find_runs([folder("backward")])[0]


def evaluations(run: Path) -> list[Point]:
    """Return a run's evaluations."""
    # A batch that lost all its episodes has no tokens.
    sampled = {
        record["step"]: record.get("env/all/total_ac_tokens", 0.0) for record in read_metrics(run / METRICS_NAME)
    }
    return [
        (sum(tokens for step, tokens in sampled.items() if step < item.batch), item.reward)
        for item in read_evaluations(run)
    ]


def means(runs: list[list[Point]]) -> list[Point]:
    """Return the means over the runs of each evaluation."""
    return [(fmean(x for x, _ in points), fmean(y for _, y in points)) for points in zip(*runs, strict=True)]


if __name__ == "__main__":
    main(*sys.argv[1:])
