"""Episodes as files: one JSON document each."""

import json
import time
from pathlib import Path
from typing import Any, cast

from harbor_gym._runtime.files import replace_text
from harbor_gym.tokens import Transcript, Turn

TRANSCRIPT_FORMAT = 1
"""Version of the documents below."""

_KEPT_INFO = ("parse_error", "exit_code", "waits", "confirmation_pending", "metrics")


def write_transcript(path: Path, transcript: Transcript, *, labels: dict[str, Any], error: str | None = None) -> None:
    """Write an episode to ``path``, whole or not at all.

    Args:
        path: The file; its folder is made if need be.
        transcript: The episode.
        labels: What the writer knows of the episode: its batch, group and place in the group.
        error: The infrastructure error that ended it, if one did.
    """
    last = transcript.turns[-1].info if transcript.turns else None
    document = {
        "format": TRANSCRIPT_FORMAT,
        **labels,
        "end_reason": "infrastructure_error" if error else (last.get("end_reason") if last else None),
        "error": error,
        "reward": None if error else sum(turn.reward for turn in transcript.turns),
        "rewards": last.get("rewards") if last else None,
        "seconds": round(time.time() - transcript.started, 3),
        "turns": [_turn(turn) for turn in transcript.turns],
        "final_observation": transcript.final_observation,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(document, ensure_ascii=False, indent=1))


def _turn(turn: Turn) -> dict[str, Any]:
    info = cast(dict[str, Any], turn.info)
    return {
        "observation": turn.observation,
        "action": turn.action,
        "reward": turn.reward,
        "prompt_tokens": turn.prompt_tokens,
        "sampled_tokens": turn.sampled_tokens,
        **{key: info[key] for key in _KEPT_INFO if key in info},
    }
