"""Transcripts of episodes, written as the package writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EndReason, EpisodeInfo, Transcript, Turn
from tests.helpers.sandboxes.fake_episodes import message

SOLVED = ("sort -u sales.csv > totals.txt\n", "root@sandbox:/srv# sort -u sales.csv > totals.txt\nroot@sandbox:/srv#")
"""What an honest policy types, and what it is shown."""


def transcript(
    *turns: tuple[str, str],
    reward: float = 1.0,
    end: EndReason = EndReason.COMPLETED,
    output: str = "",
    settings: dict[str, Any] | None = None,
    tools: Sequence[dict[str, Any]] = (),
    exit_code: int | None = None,
    parse_error: str | None = None,
) -> Transcript:
    """Return an episode.

    Args:
        turns: What the policy typed, or a whole message that begins with ``{`` or ``<``; and what it was shown then.
        reward: The verifier's.
        end: Why it ended.
        output: What the verifier printed.
        settings: Of the environment; by default our own loop's.
        tools: Schemas of an agent's tools.
        exit_code: Of the last command of each turn.
        parse_error: Why no turn could be read.
    """
    shown, made = "root@sandbox:/srv#", list[Turn]()
    for number, (typed, then) in enumerate(turns, start=1):
        action = typed if typed.startswith(("{", "<")) else message(typed)
        own: EpisodeInfo = {"turn": number, "metrics": {}, "exit_code": exit_code, "parse_error": parse_error}
        made.append(Turn(shown, action, own, 0.0))
        shown = then
    info: Any = {"turn": len(made), "metrics": {}, "end_reason": end, "rewards": {"reward": reward}}
    info["verifier_output"] = output
    episode = Transcript(made, shown, cut=(reward, info))
    episode.settings = {"action_format": "terminus-json-plain"} if settings is None else settings
    episode.tools = tools
    return episode


def write_played(run: Path, task: str, episode: Transcript, *, number: int = 1, error: str | None = None) -> Path:
    """Write an episode into a run's folder, and return its file."""
    path = run / f"transcripts/train/batch_0001/group_1/{task}/episode_{number:03d}.json"
    write_transcript(path, episode, labels={"task": task, "episode": number}, error=error)
    return path
