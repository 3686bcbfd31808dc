"""The head of an evaluation's page: the figures, the settings, and why episodes failed."""

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


def evaluation_facts(evaluation: Mapping[str, Any]) -> dict[str, str | None]:
    """Return title → fact of an evaluation that :func:`read_evaluation` returned; None if a fact is unknown."""
    settings = evaluation.get("settings") or {}
    overall = evaluation.get("overall") or {}
    tasks = [str(task["name"]) for task in evaluation.get("tasks", [])]
    solved = f"{overall['solved']} of {overall['episodes']} episodes" if "solved" in overall else None
    return {
        "model": " ".join(str(settings[key]) for key in ("model", "weights") if settings.get(key)) or None,
        "tasks": _listed(tasks) or None,
        **{f"pass@{k}": _estimate(value) for k, value in overall.get("pass_at", {}).items()},
        "mean reward": _estimate(overall.get("reward")),
        "solved": solved and f"{solved} (reward ≥ {evaluation.get('threshold', 1.0):g})",
        "lost": f"{lost} episodes, in no figure" if (lost := overall.get("infrastructure_errors")) else None,
        "tokens an episode": _parts(
            (overall.get("sampled_tokens"), "{:.0f} sampled"), (overall.get("prompt_tokens"), "last prompt {:.0f}")
        ),
        "time an episode": _parts(
            (overall.get("seconds"), "{:.1f} s"), (overall.get("sampling_sec"), "{:.1f} s of it sampling")
        ),
        "settings": _settings(settings) or None,
        "made with": _versions(settings.get("versions")),
        "made": _made(evaluation.get("provenance") or {}),
        "task files": _tasks(evaluation.get("provenance") or {}),
        "state": None if overall else "not finished",
    }


def failures(evaluation: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Return rows of the failures by reason, the most common first: lost or not solved, reason, count, episodes.

    Args:
        evaluation: The result of :func:`read_evaluation`.
        episodes: Summaries of its episodes, for an unfinished evaluation.
    """
    threshold = float(evaluation.get("threshold", 1.0))
    groups: dict[tuple[str, str], list[str]] = {}
    for episode in evaluation.get("episodes") or episodes:
        name = f"episode {episode['episode']} of {episode['task']}"
        reward = episode.get("reward")
        if reward is None:
            reason = " ".join(str(episode.get("error") or episode.get("end_reason")).split())
            groups.setdefault(("lost", reason), []).append(name)
        elif reward < threshold:
            groups.setdefault(("not solved", str(episode.get("end_reason"))), []).append(name)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(what, reason, str(len(names)), _listed(names, counts=False)) for (what, reason), names in ordered]


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


def _versions(versions: Mapping[str, Any] | None) -> str | None:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) if versions else None


def _made(provenance: Mapping[str, Any]) -> str | None:
    if "ended" not in provenance:
        return None
    sums = f"{provenance['episodes']} episodes, {provenance['seconds']:.0f} s, {provenance['sampled_tokens']} tokens"
    return f"{provenance['started']} to {provenance['ended']}; in all {sums}"


def _tasks(provenance: Mapping[str, Any]) -> str | None:
    tasks = provenance.get("tasks") or {}
    named = [
        f"{name} {item['digest'][:12]}" + (f" (git {item['git'][:12]})" if item.get("git") else "")
        for name, item in tasks.items()
    ]
    return _listed(named, counts=False) or None


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _listed(names: Sequence[str], *, counts: bool = True) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (f"{len(names)}: " if counts and len(names) > 1 else "") + ", ".join(names[:_SHOWN]) + more


def _estimate(value: Mapping[str, float] | None) -> str | None:
    return None if value is None else f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def _parts(*parts: tuple[float | None, str]) -> str | None:
    return ", ".join(form.format(value) for value, form in parts if value is not None) or None
