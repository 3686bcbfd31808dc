"""The head of an evaluation's page: the figures, the settings, and what it was made with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.transcripts import JOURNAL_NAME, RESULT_NAME

_SHOWN = 6
"""Names that are listed; the number of the others follows."""

_SETTINGS = ("base_url", "temperature", "max_tokens")


def read_evaluation(run_dir: Path) -> dict[str, Any] | None:
    """Return the ``eval.json`` of a folder, or only the settings of an unfinished evaluation.

    Args:
        run_dir: Any folder.

    Returns:
        None if the folder is not that of an evaluation.
    """
    head = object_or_empty(run_dir / JOURNAL_NAME, first_line=True)
    started = {"settings": head["settings"]} if isinstance(head.get("settings"), dict) else None
    result = object_or_empty(run_dir / RESULT_NAME)
    if isinstance(result.get("overall"), dict):
        return {**(started or {}), **result}
    return started


def evaluation_facts(evaluation: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Return title → fact of an evaluation that :func:`read_evaluation` returned; None if a fact is unknown."""
    settings = evaluation.get("settings") or {}
    overall = evaluation.get("overall") or {}
    tasks = [str(task["name"]) for task in evaluation.get("tasks", [])]
    lost = overall.get("infrastructure_errors") or None
    solved = f"{overall['solved']} of {overall['episodes']} episodes" if "solved" in overall else None
    return {
        "model": evaluated_model(settings),
        "tasks": tasks[0] if len(tasks) == 1 else len(tasks) or None,
        **{f"pass@{k}": _estimate(value) for k, value in overall.get("pass_at", {}).items()},
        "mean reward": _estimate(overall.get("reward")),
        "solved": solved and f"{solved} (reward ≥ {evaluation.get('threshold', 1.0):g})",
        "lost": lost and f"{lost} episode{'s' * (lost > 1)}, in no figure",
        "tokens an episode": _parts(
            (overall.get("sampled_tokens"), "{:.0f} sampled"), (overall.get("prompt_tokens"), "last prompt {:.0f}")
        ),
        "time an episode": _parts(
            (overall.get("seconds"), "{:.1f} s"), (overall.get("sampling_sec"), "{:.1f} s of it sampling")
        ),
        "state": None if overall else "not finished",
    }


def evaluation_provenance(evaluation: Mapping[str, Any]) -> dict[str, str | None]:
    """Return title → fact of what an evaluation was made with; None if a fact is unknown."""
    settings, made = evaluation.get("settings") or {}, evaluation.get("provenance") or {}
    return {
        "settings": _settings(settings) or None,
        "made with": listed([f"{name} {version}" for name, version in (settings.get("versions") or {}).items()]),
        "made": _made(made),
        "task files": task_files(made.get("tasks") or {}),
    }


def evaluated_model(settings: Mapping[str, Any]) -> str | None:
    """Return the model and its weights of an evaluation's settings; None if they name none."""
    return " ".join(str(settings[key]) for key in ("model", "weights") if settings.get(key)) or None


def _settings(settings: Mapping[str, Any]) -> str:
    """Return the settings that differ from an episode's defaults or have no default."""
    fields = {**AgentEpisodeConfig.model_fields, **TerminalEnvConfig.model_fields}
    env = {"sandbox": None, **(settings.get("env") or {})}
    changed = {
        key: value
        for key, value in env.items()
        if key == "sandbox" or (key in fields and isinstance(value, str | int | float) and value != fields[key].default)
    }
    shown = {**changed, **{key: settings.get(key) for key in _SETTINGS}}
    return ", ".join(f"{key} {_value(value)}" for key, value in shown.items() if value is not None)


def _made(provenance: Mapping[str, Any]) -> str | None:
    if "ended" not in provenance:
        return None
    sums = f"{provenance['episodes']} episodes, {provenance['seconds']:.0f} s, {provenance['sampled_tokens']} tokens"
    return f"{provenance['started']} to {provenance['ended']}; in all {sums}"


def task_files(tasks: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the digest and the git commit of each task's files, as text; None if there are none."""
    return listed(
        [
            f"{name} {str(item.get('digest'))[:12]}" + (f" (git {item['git'][:12]})" if item.get("git") else "")
            for name, item in tasks.items()
        ]
    )


def listed(names: Sequence[str]) -> str | None:
    """Return the first names with commas, and how many more there are; None if there are none."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else None


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _estimate(value: Mapping[str, float] | None) -> str | None:
    return None if value is None else f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def _parts(*parts: tuple[float | None, str]) -> str | None:
    return ", ".join(form.format(value) for value, form in parts if value is not None) or None
