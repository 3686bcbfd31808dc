"""A kept trial's episode in Harbor's own format (ATIF), so that `harbor view` shows it."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harbor_gym import __version__
from harbor_gym._runtime.files import replace_text
from harbor_gym.formats.tool_text import ToolCall
from harbor_gym.types import Command, EpisodeInfo

ATIF_VERSION = "ATIF-v1.8"
"""Source: harbor/models/trajectories/trajectory.py."""

_TOOL = "terminal"
_KEPT = ("turn", "exit_code", "waits", "parse_error", "omitted_bytes", "confirmation_pending")


class Trajectory:
    """The recorded steps of one episode.

    Args:
        sandbox: The sandbox's name.
        action_format: The format of the policy's messages.
    """

    def __init__(self, *, sandbox: str, action_format: str) -> None:
        self._agent = {
            "name": "harbor-gym",
            "version": __version__,
            "extra": {"sandbox": sandbox, "action_format": str(action_format)},
        }
        self.phases: list[list[dict[str, Any]]] = []
        """The steps of each phase, as JSON values."""

    def open_phase(self, instruction: str, screen: str) -> None:
        """Begin the task, or a step of a multi-step one."""
        self.phases.append([self._step("user", message=f"{instruction.rstrip()}\n\n{screen}".strip())])

    def turn(
        self, message: str, parts: Iterable[Sequence[Command] | ToolCall], observation: str, info: EpisodeInfo
    ) -> None:
        """Add the policy's action and the observation after it."""
        done = [item for part in parts for item in ([part] if isinstance(part, ToolCall) else part)]
        calls = [
            {"tool_call_id": f"turn-{info['turn']}-{number}", **_called(item)}
            for number, item in enumerate(done, start=1)
        ]
        known: dict[str, Any] = {**info}
        extra = {key: known[key] for key in _KEPT if known.get(key) is not None}
        step = self._step("agent", message=message, observation={"results": [{"content": observation}]}, extra=extra)
        if calls:
            step["tool_calls"] = calls
        self.phases[-1].append(step)

    def write(self, trial_dir: Path, info: EpisodeInfo, steps: Sequence[str] = ()) -> None:
        """Write the whole episode into the trial's folder, and each step of a task with steps into its own.

        Args:
            trial_dir: The trial's folder. Its sandbox may still write to the log folders that it mounts.
            info: The last transition's info.
            steps: Names of the task's steps, in order.
        """
        end: dict[str, Any] = {
            "end_reason": str(info.get("end_reason", "")),
            "rewards": info.get("rewards", {}),
            "episode_reward": info.get("episode_reward"),
        }
        self._write(trial_dir / "agent", [step for phase in self.phases for step in phase], end)
        for name, phase in zip(steps, self.phases, strict=False):
            self._write(trial_dir / "steps" / name / "agent", phase, {})

    def _write(self, folder: Path, steps: Sequence[dict[str, Any]], extra: dict[str, Any]) -> None:
        # A sandbox may mount this folder: replacing a name in it follows no link of the policy.
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "schema_version": ATIF_VERSION,
            "session_id": folder.parent.name,
            "agent": self._agent,
            "steps": [{**step, "step_id": number} for number, step in enumerate(steps, start=1)],
            "final_metrics": {"total_steps": len(steps)},
            "extra": extra,
        }
        replace_text(folder / "trajectory.json", json.dumps(document, indent=1) + "\n")

    @staticmethod
    def _step(source: str, **fields: Any) -> dict[str, Any]:
        return {"source": source, "timestamp": datetime.now(UTC).isoformat(), **fields}


def _called(item: Command | ToolCall) -> dict[str, Any]:
    if isinstance(item, ToolCall):
        return {"function_name": item.name, "arguments": json.loads(item.arguments)}
    return {
        "function_name": _TOOL,
        "arguments": {"keystrokes": item.keystrokes, "duration_sec": item.duration_sec},
    }
