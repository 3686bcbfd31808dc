"""Compare where episodes begin: at the task's start, and in solved episodes, from their end backwards.

.venv/bin/python .ci/learn_starts.py                       # two ways x three seeds, an hour; the same command continues
.venv/bin/python .ci/learn_starts.py --num-batches 8       # further flags are those of `harbor-gym sweep`

Prints a table of evaluations, which begin at the task's start, from runs/learn-starts, and draws them as curves.png
there.
"""

import sys
from pathlib import Path
from statistics import fmean

from learn_context import draw
from learn_real import run

from harbor_gym._runtime.console.tables import markdown_table
from harbor_gym.evaluation.best import is_finished, read_evaluations
from harbor_gym.report import find_runs, read_metrics
from harbor_gym.report.metrics import METRICS_NAME

FOLDER = Path("runs/learn-starts")
WAYS = ("the task's start", "backward")
SEEDS = (0, 1, 2)
TASK = "task:devops_task"
PLAYED = ("--env", "local", "--backend", "local", "--zero-reward-on-limit")
SETTING = ("--learning-rates", "1e-3", "--num-batches", "16", "--eval-every", "4", "--eval-temperature", "1")
EPISODES = ("--test-episodes", "16")
FIRST = ("--num-batches", "4", "--learning-rate", "1e-6")
"""Of a run whose solved episodes are the starts. At this rate its policy stays as it is."""

type Point = tuple[float, float]
"""Tokens that the run had sampled for training before an evaluation, and its reward."""


def main(*flags: str) -> None:
    """Run the sweeps, print the table and draw the figure."""
    for seed in SEEDS:  # each has a policy of its own, and tokens belong to one
        source = FOLDER / f"source-{seed}"
        if not is_finished(source):
            fresh = (TASK, "--log-path", str(source), *PLAYED, *FIRST, "--seed", str(seed))
            run("train", *(("--resume", str(source)) if source.exists() else fresh))
        for name in WAYS:
            backward = ("--start-from", str(source), "--start-where", "reward=1", "--start-turn", "backward")
            starts = backward if name == "backward" else ()
            sweep = (TASK, "--output", str(folder(name, seed)), "--seeds", str(seed))
            run("sweep", *sweep, *PLAYED, *SETTING, *EPISODES, *starts, *flags)
    folders = {name: find_runs([folder(name, seed) for seed in SEEDS]) for name in WAYS}
    runs = {name: list(map(evaluations, found)) for name, found in folders.items()}
    heads = ("episodes begin at", *(f"after {item.batch}" for item in read_evaluations(folders["backward"][0])))
    rows = [(name, *(f"{y:.2f} ({x / 1000:.1f}k)" for x, y in means(of_way))) for name, of_way in runs.items()]
    print(markdown_table(heads, rows, right=range(1, len(heads))))
    curves = {name: tuple(map(list, zip(*means(of_way), strict=True))) for name, of_way in runs.items()}
    draw(curves, FOLDER / "curves.png", "mean reward of evaluations")


def folder(way: str, seed: int) -> Path:
    """Return the folder of a way's sweep over one seed."""
    return FOLDER / f"{way}-{seed}".replace(" ", "-").replace("'", "")


def evaluations(run_dir: Path) -> list[Point]:
    """Return a run's evaluations."""
    batches = read_metrics(run_dir / METRICS_NAME)

    def sampled(before: int) -> float:  # a batch that lost all its episodes has no tokens
        return sum(batch.get("env/all/total_ac_tokens", 0.0) for batch in batches if batch["step"] < before)

    return [(sampled(item.batch), item.reward) for item in read_evaluations(run_dir)]


def means(runs: list[list[Point]]) -> list[Point]:
    """Return the means over the runs of each evaluation."""
    return [(fmean(x for x, _ in points), fmean(y for _, y in points)) for points in zip(*runs, strict=True)]


if __name__ == "__main__":
    main(*sys.argv[1:])
