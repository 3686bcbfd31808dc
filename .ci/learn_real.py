"""Show that a pretrained model learns the shipped task, in runs/learn-real: as fetched, fine-tuned, and trained.

.venv/bin/python .ci/learn_real.py                                  # hours; the same command continues
.venv/bin/python .ci/learn_real.py --quick                          # one seed, few batches; fails if nothing rises
.venv/bin/python .ci/learn_real.py --seeds 0 --num-batches 2        # further flags are those of `harbor-gym sweep`
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from harbor_gym._runtime.console.tables import markdown_table
from harbor_gym.evaluation.best import read_evaluations
from harbor_gym.report import find_runs, read_metrics

TASK, MODEL, FOLDER = "task:devops_task", "smollm2-135m", Path("runs/learn-real")
EPISODES = 16
"""Episodes of each evaluation."""

COMPARED = 3
"""Batches at either end of a quick run whose mean rewards are compared."""

COMMAND = (sys.executable, "-m", "harbor_gym")
PLAYED = ("--env", "local", "--zero-reward-on-limit", "--action-format", "keystrokes")
TRAINED = ("--backend", "local", "--model", MODEL)
RATE = "5e-4"
QUICK = ("--seeds", "0", "--num-batches", "8")


def main(*flags: str) -> None:
    """Evaluate the model as it was fetched, then fine-tune, evaluate, train and evaluate it for each seed."""
    if "--learning-rates" not in flags:
        flags += ("--learning-rates", RATE)
    if "--quick" in flags:
        quick(*(flag for flag in flags if flag != "--quick"))
        return
    fetched = subprocess.run((*COMMAND, "server", "fetch", MODEL), check=True, stdout=subprocess.PIPE, text=True)
    policy = ("--model-name", fetched.stdout.strip(), "--renderer-name", "chat_template", "--max-tokens", "128")
    size = ("--max-turns", "10", "--episodes", str(EPISODES), "--n-concurrent", "8")
    run("eval", TASK, *policy, *size, *PLAYED, "--output", str(FOLDER / "fetched"))
    trained = FOLDER / "trained"
    evaluated = ("--eval-every", "25", "--eval-temperature", "1", "--test-episodes", str(EPISODES))
    run("sweep", TASK, "--output", str(trained), *TRAINED, *evaluated, *PLAYED, *flags)
    overall = json.loads((FOLDER / "fetched" / "eval.json").read_text(encoding="utf-8"))["overall"]
    rows = [("all", "as fetched", *cells(overall["solved"] / max(overall["episodes"], 1), overall["turns"]))]
    for folder in find_runs([trained]):
        first, *_, last = read_evaluations(folder)
        for name, evaluation in (("fine-tuned", first), ("trained", last)):
            rows.append((folder.name, name, *cells(evaluation.reward, evaluation.turns)))
    print(markdown_table(("run", "policy", "reward", "turns"), rows, right=(2, 3)))


def quick(*flags: str) -> None:
    """Fine-tune and train the model for one seed.

    Raises:
        SystemExit: The last batches have no higher reward than the first.
    """
    run("sweep", TASK, "--output", str(FOLDER / "quick"), *TRAINED, *PLAYED, *QUICK, *flags)
    for folder in find_runs([FOLDER / "quick"]):
        rewards = [batch["env/all/reward/total"] for batch in read_metrics(folder / "metrics.jsonl")]
        print(folder.name, *(f"{reward:.2f}" for reward in rewards))
        first, last = fmean(rewards[:COMPARED]), fmean(rewards[-COMPARED:])
        if last <= first:
            raise SystemExit(
                f"{folder}: the last {COMPARED} batches have a reward of {last:.2f}, the first {first:.2f}"
            )


def cells(reward: float, turns: float | None) -> tuple[str, str]:
    """Return a mean reward and mean turns as text."""
    return f"{reward:.2f}", "-" if turns is None else f"{turns:.1f}"


def run(*arguments: str) -> None:
    """Run one of the package's commands."""
    subprocess.run((*COMMAND, *arguments), check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
