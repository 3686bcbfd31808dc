"""Compare what a full context costs: nothing done, older turns left out, and summaries, masked or trained.

.venv/bin/python .ci/learn_context.py                       # four ways x three seeds, hours; the same command continues
.venv/bin/python .ci/learn_context.py --parallel 2          # further flags are those of `harbor-gym sweep`

Prints a table of rewards against sampled tokens from runs/learn-context, and draws it as curves.png there.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from harbor_gym._runtime.console.tables import markdown_table
from harbor_gym.report import find_runs, read_metrics
from harbor_gym.report.curves import COLOURS

FOLDER = Path("runs/learn-context")
WAYS = {
    "without": (),
    "window": ("--compaction", "window"),
    "summary, not trained": ("--compaction", "summary", "--no-train-summaries"),
    "summary, trained": ("--compaction", "summary"),
}
SETTING = (
    *("--env", "local", "--backend", "local", "--zero-reward-on-limit", "--learning-rates", "1e-3"),
    *("--max-context-tokens", "400", "--max-turns", "12", "--max-tokens", "24", "--num-batches", "16"),
)
TOKENS = 2000
"""Sampled tokens of a run for each column of the table."""

type Batch = tuple[float, float, float]
"""Tokens that the run had sampled after it, reward, compactions of an episode."""


def main(*flags: str) -> None:
    """Run the sweeps, print the table and draw the figure."""
    for name, flags_of_way in WAYS.items():
        command = (sys.executable, "-m", "harbor_gym", "sweep", "task:devops_task", "--output", str(folder(name)))
        subprocess.run((*command, *SETTING, *flags_of_way, *flags), check=True)
    runs = {name: [list(batches(run)) for run in find_runs([folder(name)])] for name in WAYS}
    # What every run reached: a way that samples fewer tokens in its batches has no further columns.
    columns = int(min(run[-1][0] for of_way in runs.values() for run in of_way) // TOKENS) or 1
    heads = [f"{column * TOKENS // 1000}-{(column + 1) * TOKENS // 1000}k" for column in range(columns)]
    rows = [
        (name, *(f"{value:.2f}" for value in rewards(of_way, columns)), compactions(of_way))
        for name, of_way in runs.items()
    ]
    print(markdown_table(("way", *heads, "compactions, first and last 3 batches"), rows, right=range(1, columns + 2)))
    middles = [(column + 0.5) * TOKENS for column in range(columns)]
    curves = {name: (middles, rewards(of_way, columns)) for name, of_way in runs.items()}
    draw(curves, FOLDER / "curves.png", "mean reward")


def folder(way: str) -> Path:
    """Return the sweep's folder of a way."""
    return FOLDER / way.replace(", ", "-").replace(" ", "-")


def batches(run: Path) -> Iterator[Batch]:
    """Yield a run's batches."""
    sampled = 0.0
    for batch in read_metrics(run / "metrics.jsonl"):
        sampled += batch["env/all/total_ac_tokens"]
        yield sampled, batch["env/all/reward/total"], batch.get("env/all/compactions", 0.0)


def rewards(runs: list[list[Batch]], columns: int) -> list[float]:
    """Return the mean reward of all runs' batches in each column."""
    of_column: list[list[float]] = [[] for _ in range(columns)]
    for run in runs:
        for sampled, reward, _ in run:
            if (column := int((sampled - 1) // TOKENS)) < columns:
                of_column[column].append(reward)
    return [fmean(values) if values else float("nan") for values in of_column]


def compactions(runs: list[list[Batch]]) -> str:
    """Return how often an episode was compacted in the first and in the last three batches."""
    ends = ([batch[2] for run in runs for batch in run[part]] for part in (slice(3), slice(-3, None)))
    return " and ".join(f"{fmean(values):.1f}" for values in ends)


def draw(curves: dict[str, tuple[list[float], list[float]]], path: Path, title: str) -> None:
    """Draw each way's rewards against the sampled tokens.

    Args:
        curves: A way's name → numbers of tokens, and the reward at each.
        path: The picture's file.
        title: What the rewards are.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for colour, (name, (tokens, values)) in zip(COLOURS, curves.items(), strict=False):
        axes.plot([number / 1000 for number in tokens], values, color=colour, marker="o", markersize=3, label=name)
    axes.set(xlabel="thousand tokens sampled by a run", ylabel=title, ylim=(-0.03, 1.03))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main(*sys.argv[1:])
