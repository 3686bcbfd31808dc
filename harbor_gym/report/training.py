"""The head of a training run's page: its settings, what it was made with, and its batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym.report.evaluation import listed, task_files
from harbor_gym.report.live import outcomes, phases
from harbor_gym.report.metrics import REWARD_KEYS, TURNS_KEYS, model_of, run_config
from harbor_gym.transcripts import TASKS_NAME

BATCH_TITLES = ("batch", "reward", "turns", "episodes", "tokens sampled", "seconds", "of these", "ended")
"""Titles of the columns of :func:`batch_row`."""


def training_facts(run_dir: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return title → fact of a run; None if a fact is unknown.

    Args:
        run_dir: The run's folder.
        records: What :func:`harbor_gym.report.read_metrics` returned.
    """
    config = run_config(run_dir)
    return {
        "model": model_of(config),
        "learning rate": config.get("learning_rate"),
        "loss": config.get("loss_fn"),
        "LoRA rank": config.get("lora_rank"),
        "batches": len(records) or None,
    }


def training_provenance(run_dir: Path) -> dict[str, Any]:
    """Return title → fact of what a run was made with; None if a fact is unknown."""
    run, tasks = object_or_empty(run_dir / "run.json"), object_or_empty(run_dir / TASKS_NAME)
    settings = run.get("config") or {}
    rows = {str(row.get("name")): {"git": row.get("commit"), **row} for row in tasks.get("tasks") or []}
    return {
        "seed": settings.get("seed"),
        "sandbox": (settings.get("env") or {}).get("sandbox"),
        "made with": listed([f"{name} {version}" for name, version in (run.get("versions") or {}).items()]),
        "task files": task_files(rows),
        "test tasks": listed([str(name) for name in tasks.get("test_tasks") or []]),
    }


def batch_row(record: dict[str, Any]) -> tuple[str, ...]:
    """Return a batch's row of the table, with :data:`BATCH_TITLES`."""

    def number(keys: Sequence[str], form: str) -> str:
        value = next((record[key] for key in keys if key in record), None)
        return "-" if value is None else format(value, form)

    return (
        str(record["step"] + 1),
        number(REWARD_KEYS, ".3f"),
        number(TURNS_KEYS, ".2f"),
        number(("env/all/total_episodes",), ".0f"),
        number(("env/all/total_ac_tokens",), ".0f"),
        number(("time/total",), ".1f"),
        ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases(record).items()),
        ", ".join(f"{name} {share:.0%}" for name, share in outcomes(record).items()),
    )
