"""Read a run's episodes, each a transcript with its recording, and summarise them."""

import contextlib
import json
import logging
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import StrPath, open_regular
from harbor_gym.errors import UsageError
from harbor_gym.tasks.selection import Condition
from harbor_gym.transcripts import episode_name, no_transcript, transcripts_of
from harbor_gym.types import ActionFormat

_logger = logging.getLogger(__name__)

_MAX_CAST_BYTES = 2 << 20
"""A longer recording is left out of a page."""

_MOST_OF_LINE = 200
"""Characters of a verifier's last line that a summary has."""

UNREADABLE = "unreadable"
"""End reason of an episode whose transcript can't be read."""

_NOTHING: Mapping[str, Any] = {}
_SUMMARY = ("name", "task", "split", "batch", "group", "episode", "reward", "end_reason", "error", "seconds", "started")

LABELS = ("task", "split", "batch", "group", "episode", "end_reason", "reward")
"""The keys of an episode that conditions can be on."""

_GROUP = re.compile(r"group_(\d+)")
_PLACE = re.compile(r"(?:(?P<split>\w+)/)?batch_(?P<batch>\d+)/(?P<group>[^/]+)/episode_(?P<episode>\d+)\.json")


@dataclass(frozen=True)
class Chosen:
    """The episodes that a page shows."""

    episodes: Sequence[dict[str, Any]]
    """The episodes by batch, evaluations last."""

    found: int
    """Episodes in the run's folder."""

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Names of the episodes whose transcripts can't be read."""
        return tuple(episode["name"] for episode in self.episodes if episode["end_reason"] == UNREADABLE)


def parse_conditions(where: Sequence[str]) -> list[Condition]:
    """Read conditions on :data:`LABELS`.

    Raises:
        UsageError: One can't be read, or episodes have no such label.
    """
    conditions = [Condition.parse(text) for text in where]
    if unknown := sorted({item.key for item in conditions}.difference(LABELS)):
        raise UsageError(f"where: episodes have no {', '.join(unknown)}; they have {', '.join(LABELS)}")
    return conditions


def choose_episodes(run_dir: Path, *, most: int, max_bytes: int) -> Chosen:
    """Read a run's episodes; if there are too many, choose evenly over the batches.

    Args:
        run_dir: The run's folder.
        most: Most episodes to read.
        max_bytes: Most text and recordings to read, in bytes; reading stops at the episode that exceeds it.
    """
    paths = sorted((run_dir / "transcripts").rglob("*.json"))
    chosen: list[dict[str, Any]] = []
    room = max_bytes
    for path in _in_turn(paths, most):
        if len(chosen) == most or room <= 0:
            break
        episode = read_episode(path, run_dir)
        if episode is not None:
            room -= len(json.dumps(episode))
            if room >= 0:
                chosen.append(episode)
    chosen.sort(
        key=lambda item: (item["split"] == "test", item["split"], item["batch"], item["group"], item["episode"])
    )
    return Chosen(chosen, len(paths))


def read_episode(path: Path, run_dir: Path, *, with_cast: bool = True) -> dict[str, Any] | None:
    """Return one episode with its place in the run and its recording; None if ``path`` is not a regular file.

    Args:
        path: The transcript.
        run_dir: The run's folder.
        with_cast: Whether to read the recording too.
    """
    episode = read_transcript(path, run_dir) or _unreadable(path, run_dir)
    if episode is None or not with_cast:
        return episode
    return {**episode, "cast": _cast(path.with_suffix(".cast"), run_dir)}


def summarize_episode(episode: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an episode for the list of episodes."""
    turns, group = episode["turns"], _GROUP.fullmatch(str(episode["group"]))
    tokens = [turn["sampled_tokens"] for turn in turns if isinstance(turn.get("sampled_tokens"), int)]
    return {
        **{key: episode.get(key) for key in _SUMMARY},
        "turns": len(turns),
        "tokens": sum(tokens) if tokens else None,
        "group": int(group[1]) if group else None,
        "title": title_of(episode),
        "verdict": _last_line((episode.get("verifier") or _NOTHING).get("output")),
    }


def _last_line(output: object) -> str:
    """Return the last line of a verifier's output that has a word; empty if there is none."""
    lines = (line.strip(" \t\r=-") for line in reversed(output.splitlines())) if isinstance(output, str) else ()
    return next((line[:_MOST_OF_LINE] for line in lines if line), "")


def title_of(episode: Mapping[str, Any]) -> str:
    """Return an episode's name, see :func:`harbor_gym.transcripts.episode_name`."""
    split, group = episode["split"], episode["group"]
    place = f"{split}/batch_{episode['batch']}/{group}" if split else group
    task = episode.get("task") or ("" if split else group)
    return episode_name({"task": task, "episode": episode["episode"], "group": place})


def contains(episode: Mapping[str, Any], text: str) -> bool:
    """Return whether an episode's texts (observations, answers, verifier output …) contain ``text``, ignoring case."""
    wanted = text.casefold()
    verifier = episode.get("verifier") or {}
    parts = [episode.get("final_observation"), episode.get("error"), verifier.get("output"), episode.get("name")]
    parts += (episode.get("services") or {}).values()
    parts += [turn.get(key) for turn in episode["turns"] for key in ("observation", "action", "parse_error")]
    return any(wanted in part.casefold() for part in parts if isinstance(part, str))


def _in_turn(paths: Sequence[Path], most: int) -> Iterable[Path]:
    """Return the first episode of every batch, then the second of each …; every n-th batch first if there are many."""
    batches: dict[Path, list[Path]] = {}
    for path in paths:
        batches.setdefault(path.parent.parent, []).append(path)
    stride = max(1, -(-len(batches) // max(1, most)))
    spread = list(batches.values())
    ordered = [*spread[::stride], *(item for n, item in enumerate(spread) if n % stride)]
    return (path for path in chain.from_iterable(zip_longest(*ordered)) if path is not None)


def _unreadable(path: Path, run_dir: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            error = f"{path} can't be read as a transcript: its content is lost, remove it"
            return {
                **_place(path, run_dir / "transcripts"),
                "end_reason": UNREADABLE,
                "error": error,
                "reward": None,
                "turns": [],
            }
    return None


def read_transcript(path: Path, run_dir: Path, *, with_tokens: bool = False) -> dict[str, Any] | None:
    """Return one episode's document with its place in the run; None if it is not a complete transcript.

    Args:
        path: The transcript.
        run_dir: The run's folder.
        with_tokens: Keep the token ids.
    """
    return read_labelled(path, run_dir / "transcripts", with_tokens=with_tokens)


def read_labelled(path: Path, root: Path, *, with_tokens: bool = False) -> dict[str, Any] | None:
    """Return one episode's document as :func:`read_transcript` does, with its place in a folder of transcripts."""
    with contextlib.suppress(OSError, ValueError):
        with open_regular(path, root) as file:
            document = json.loads(file.read())
        if isinstance(document, dict) and isinstance(document.get("turns"), list):
            settings = document.pop("settings", None)  # has paths of this machine, and a page may be shared
            if not with_tokens:
                document.pop("tokens", None)
                for turn in document["turns"]:
                    if isinstance(turn, dict):
                        turn.pop("compaction", None)  # has its conversation's tokens; "compacted" says it in words
                        for summary in turn.get("summaries", ()):
                            summary.pop("tokens", None)
                            summary.pop("request", None)
            can_be_played = isinstance(settings, dict) and settings.get("action_format") == ActionFormat.TERMINUS_JSON
            return {**document, **_place(path, root, document), "can_be_played": can_be_played}
    return None


def read_transcripts(run: StrPath) -> list[dict[str, Any]]:
    """Return the complete transcripts of a run by their names, see :func:`read_transcript`; the others are logged.

    Raises:
        UsageError: The run has no complete transcript.
    """
    read = {path: read_transcript(path, Path(run)) for path in transcripts_of(run)}
    documents = [document for document in read.values() if document is not None]
    if unreadable := [str(path) for path, document in read.items() if document is None]:
        _logger.warning(
            "%d of %d transcripts can't be read and are left out: %s", len(unreadable), len(read), ", ".join(unreadable)
        )
    if not documents:
        raise no_transcript(run)
    return documents


def _place(path: Path, root: Path, document: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    name = path.relative_to(root).as_posix()
    place = _PLACE.fullmatch(name)
    return {
        "name": name.removesuffix(".json"),
        "split": place["split"] or "train" if place else "",
        "batch": int(place["batch"]) if place else 0,
        "group": place["group"] if place else str(document.get("group", "")),
        "episode": int(place["episode"]) if place else document.get("episode", 0),
    }


def _cast(path: Path, run_dir: Path) -> str | None:
    with contextlib.suppress(OSError), open_regular(path, run_dir / "transcripts") as file:
        if len(content := file.read(_MAX_CAST_BYTES + 1)) <= _MAX_CAST_BYTES:
            return content.decode("utf-8", "replace")
    return None
