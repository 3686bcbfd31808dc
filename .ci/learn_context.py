"""Compare what a full context costs: nothing done, older turns left out, and summaries, masked or trained.

.venv/bin/python .ci/learn_context.py                       # four ways x three seeds, hours; the same command continues
.venv/bin/python .ci/learn_context.py --parallel 2          # further flags are those of `harbor-gym sweep`
.venv/bin/python .ci/learn_context.py sealed_archive        # a task that needs more than fits, by a policy that sums up

Prints a table of rewards against sampled tokens from runs/learn-context/TASK, and draws it as curves.png there.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import archive_policy

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
    *("--max-turns", "12", "--max-tokens", "24", "--num-batches", "16"),
)
TASKS = {"devops_task": (400, 2000), "sealed_archive": (480, 500)}
"""Task → longest context in tokens, and sampled tokens of a run for each column of its table."""

type Batch = tuple[float, float, float]
"""Tokens that the run had sampled after it, reward, compactions of an episode."""


def main(task: str = "devops_task", *flags: str) -> None:
    """Run the sweeps, print the table and draw the figure."""
    if task.startswith("-"):
        task, flags = "devops_task", (task, *flags)
    root, (context, width) = FOLDER / task, TASKS[task]
    setting = (*SETTING, "--max-context-tokens", str(context))
    if task == archive_policy.TASK.name:
        policy = archive_policy.make_policy(root)
        known = ("--model-name", str(policy), "--renderer-name", archive_policy.RENDERER, "--demonstrations", "0")
        setting = (*setting, *known, "--action-format", "keystrokes")
    for name, flags_of_way in WAYS.items():
        command = (sys.executable, "-m", "harbor_gym", "sweep", f"task:{task}", "--output", str(folder(root, name)))
        subprocess.run((*command, *setting, *flags_of_way, *flags), check=True)
    runs = {name: [list(batches(run)) for run in find_runs([folder(root, name)])] for name in WAYS}
    # What every run reached: a way that samples fewer tokens in its batches has no further columns.
    columns = int(min(run[-1][0] for of_way in runs.values() for run in of_way) // width) or 1
    heads = [f"{column * width / 1000:g}-{(column + 1) * width / 1000:g}k" for column in range(columns)]
    rows = [
        (name, *(f"{value:.2f}" for value in rewards(of_way, columns, width)), compactions(of_way))
        for name, of_way in runs.items()
    ]
    print(markdown_table(("way", *heads, "compactions, first and last 3 batches"), rows, right=range(1, columns + 2)))
    middles = [(column + 0.5) * width for column in range(columns)]
    curves = {name: (middles, rewards(of_way, columns, width)) for name, of_way in runs.items()}
    draw(curves, root / "curves.png", "mean reward")


def folder(root: Path, way: str) -> Path:
    """Return the sweep's folder of a way."""
    return root / way.replace(", ", "-").replace(" ", "-")


def batches(run: Path) -> Iterator[Batch]:
    """Yield a run's batches."""
    sampled = 0.0
    for batch in read_metrics(run / "metrics.jsonl"):
        sampled += batch["env/all/total_ac_tokens"]
        yield sampled, batch["env/all/reward/total"], batch.get("env/all/compactions", 0.0)


def rewards(runs: list[list[Batch]], columns: int, width: int) -> list[float]:
    """Return the mean reward of all runs' batches in each column of so many sampled tokens."""
    of_column: list[list[float]] = [[] for _ in range(columns)]
    for run in runs:
        for sampled, reward, _ in run:
            if (column := int((sampled - 1) // width)) < columns:
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
