"""Runs as data sets: their episodes as chats or as exact tokens, in JSON lines or Parquet."""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harbor_gym import __version__
from harbor_gym._runtime.files import StrPath, naming
from harbor_gym.errors import UsageError
from harbor_gym.report.chats import chat_of
from harbor_gym.report.frame import save_parquet
from harbor_gym.report.summaries import LABELS, parse_conditions, read_transcript
from harbor_gym.sequences import merge
from harbor_gym.tasks.selection import Condition
from harbor_gym.transcripts import read_tokens, read_turns, transcripts_of, transitions_of
from harbor_gym.types import TokenSequence

Form = Literal["messages", "tokens"]
"""``messages``: chats. ``tokens``: the sampled token ids and all between them, never rendered anew."""

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_LEAST_SECRET = 8
"""Characters of the shortest value that is taken for a secret."""

_CARD = "README.md"
_UNREADABLE = "can't be read"
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Export:
    """A data set that was written."""

    path: StrPath
    """The file, or the folder with ``data/train.jsonl`` and a card."""

    episodes: int
    """Episodes in it."""

    left_out: Mapping[str, int]
    """Why other episodes are not in it → their number."""


def export(
    runs: Sequence[StrPath],
    output: StrPath,
    *,
    form: Form = "messages",
    where: Sequence[str] = (),
    min_reward: float | None = None,
    best_of_group: bool = False,
) -> Export:
    """Write the episodes of runs as one data set. An episode without a verdict is left out.

    An episode is one row; in the form ``tokens``, one for each of its training sequences, of which it has several where
    its prompt was compacted.

    Every row has ``run`` (the folder's name), ``name`` (the transcript's path in it), ``task``, ``split``, ``batch``,
    ``group``, ``episode``, ``end_reason`` and ``reward``, and

    - in the form ``messages``: ``messages``, a chat as :func:`harbor_gym.report.messages` has it, and ``tools``, where
      an agent declared any. TRL's ``SFTTrainer`` and the cookbook's loader of conversations read these;
    - in the form ``tokens``, ``sequence`` (its number in the episode, from 0) and, all of one length: ``input_ids``,
      ``assistant_masks`` (1 for a sampled token, as TRL names it), ``roles`` (``prompt``, ``sampled`` or
      ``observation``) and ``logprobs`` (of the sampling policy, in nats with 4 decimals; null for a token that was not
      sampled, or whose log-probability is unknown); further ``version``, of the weights that sampled its last answer,
      and ``advantage``, the reward less the mean of the episode's group; null where the group has one episode. Each
      token is the transcript's.

    Neither form has an episode's settings. A value of this process's environment whose variable's name says that it is
    a secret is replaced by ``[NAME]`` in a chat; tokens that hold one are left out. Of equal chats or token sequences
    the first is kept.

    Args:
        runs: Folders of training runs or evaluations.
        output: A ``.jsonl`` or ``.parquet`` file; or a folder, for ``datasets.load_dataset``, which gets
            ``data/train.jsonl`` and a card with the tasks, versions, filters and counts.
        form: See above.
        where: Conditions on the row's labels, as for tasks: ``task=a,b``, ``split!=test``, ``reward=1``.
        min_reward: The least reward.
        best_of_group: Of each group's episodes keep the one with the highest reward, the first of several.

    Raises:
        UsageError: A run has no transcript, a condition is wrong, no episode is left, or ``output`` has another suffix.
        MissingDependencyError: pandas or pyarrow is not installed, for Parquet.
    """
    path, conditions = Path(output), parse_conditions(where)
    is_folder = not path.suffix or path.is_dir()
    if not is_folder and path.suffix not in _SUFFIXES:
        raise UsageError(f"{path}: name a .jsonl or .parquet file, or a folder")
    chosen = _Chosen()
    for run in map(Path, runs):
        chosen.add(run)
    chosen.choose(conditions, min_reward=min_reward, best_of_group=best_of_group)
    rows = [*chosen.rows(form)]
    if not rows:
        why = "; ".join(f"{count} {reason}" for reason, count in chosen.left_out.items())
        raise UsageError(f"no episode is left of {chosen.found}: {why}")
    episodes = [*{(row["run"], row["name"]): row for row in rows}.values()]
    file = path / "data/train.jsonl" if is_folder else path
    with naming(path):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".parquet":
            save_parquet(rows, file)
        else:
            file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
        if is_folder:
            (path / _CARD).write_text(_card(form, episodes, chosen, where), encoding="utf-8")
    return Export(path, len(episodes), chosen.left_out)


type _Place = tuple[tuple[Path, Path], dict[str, Any]]
"""A transcript with its run's folder, and its labels."""


class _Chosen:
    """The episodes that meet the conditions: their places first, so that a long run is not held in memory twice."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._groups: dict[tuple[str, ...], list[float]] = {}
        self._secrets = secret_values()
        self.left_out: Counter[str] = Counter()
        self.found = 0

    def add(self, run: Path) -> None:
        paths = transcripts_of(run)
        self.found += len(paths)
        for path in paths:
            if (document := read_transcript(path, run)) is None:
                self.left_out[_UNREADABLE] += 1
            elif (reward := document.get("reward")) is None:
                self.left_out["have no verdict"] += 1
            else:
                labels = {"run": run.resolve().name, **{key: document.get(key) for key in ("name", *LABELS)}}
                self._groups.setdefault(_group_of(labels), []).append(reward)
                self._places.append(((path, run), labels))

    def choose(self, conditions: Sequence[Condition], *, min_reward: float | None, best_of_group: bool) -> None:
        """Keep the episodes that meet the conditions."""
        found = self._places
        self._places = [
            (place, labels)
            for place, labels in found
            if (min_reward is None or labels["reward"] >= min_reward)
            and all(condition.holds(labels[condition.key]) for condition in conditions)
        ]
        self.left_out["do not meet the conditions"] += len(found) - len(self._places)
        if best_of_group:
            self._keep_best()

    def _keep_best(self) -> None:
        best: dict[tuple[str, ...], _Place] = {}
        for place in self._places:
            group = _group_of(place[1])
            if group not in best or place[1]["reward"] > best[group][1]["reward"]:
                best[group] = place
        self.left_out["are not the best of their group"] += len(self._places) - len(best)
        self._places = [*best.values()]

    def rows(self, form: Form) -> Iterator[dict[str, Any]]:
        seen: set[bytes] = set()
        for (path, run), labels in self._places:
            try:
                contents, why = self._contents(form, read_transcript(path, run, with_tokens=True), labels)
            except (AttributeError, KeyError, TypeError, ValueError, UsageError):  # no transcript, though it is JSON
                contents, why = [], _UNREADABLE
            text = [content.get("messages") or content["input_ids"] for content in contents]
            key = hashlib.sha256(json.dumps(text).encode()).digest()
            if why := why or ("are there already" if key in seen else ""):
                self.left_out[why] += 1
                continue
            seen.add(key)
            yield from ({**labels, **content} for content in contents)

    def _contents(
        self, form: Form, document: Mapping[str, Any] | None, labels: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the rows' contents, or why there are none."""
        if document is None:
            return [], _UNREADABLE
        return ([self._chat(document)], "") if form == "messages" else self._tokens(document, labels)

    def _chat(self, document: Mapping[str, Any]) -> dict[str, Any]:
        text = json.dumps(chat_of(document), ensure_ascii=False)
        for secret, name in self._secrets.items():
            text = text.replace(secret, f"[{name}]")
        return {"messages": json.loads(text), **({"tools": tools} if (tools := document.get("tools")) else {})}

    def _tokens(self, document: Mapping[str, Any], labels: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        if "tokens" not in document or not document["turns"]:
            return [], "have no tokens: a chat or an agent played them"
        if (sequences := _sequences(document)) is None:
            return [], "have no tokens of their last answer: an earlier version wrote them"
        text = json.dumps([document["turns"], document.get("system_prompt")], ensure_ascii=False)
        if any(secret in text for secret in self._secrets):
            return [], "hold a secret of this process's environment"
        rewards = self._groups[_group_of(labels)]
        advantage = labels["reward"] - sum(rewards) / len(rewards) if len(rewards) > 1 else None
        return [
            {"sequence": number, **_columns(sequence), "advantage": advantage}
            for number, sequence in enumerate(sequences)
        ], ""


def _group_of(labels: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(labels[key]) for key in ("run", "split", "batch", "group"))


def _sequences(document: Mapping[str, Any]) -> list[TokenSequence] | None:
    """Return an episode's training sequences; None where the file lacks the tokens of the last answer."""
    turns, tokens = read_turns(document["turns"]), read_tokens(document["tokens"])
    if len(tokens) < turns[-1].prompt_tokens + turns[-1].sampled_tokens and turns[-1].compaction is None:
        return None
    return merge(transitions_of(turns, tokens))


def _columns(sequence: TokenSequence) -> dict[str, Any]:
    logprobs = [
        value if masked and math.isfinite(value) else None
        for value, masked in zip(sequence.token_logprobs, sequence.token_mask, strict=True)
    ]
    return {
        "input_ids": sequence.token_ids,
        "assistant_masks": sequence.token_mask,
        "roles": [role.value for role in sequence.token_roles],
        "logprobs": logprobs,
        "version": sequence.spans[-1].version,
    }


def secret_values() -> dict[str, str]:
    """Return what stands for a secret of this process's environment in JSON, also in JSON within JSON → its name."""
    found: dict[str, str] = {}
    for name, value in os.environ.items():
        if SECRET_NAME.search(name) and len(value) >= _LEAST_SECRET:
            once = json.dumps(value, ensure_ascii=False)[1:-1]
            found |= {once: name, json.dumps(once, ensure_ascii=False)[1:-1]: name}
    return found


def _card(form: Form, rows: Sequence[Mapping[str, Any]], chosen: _Chosen, where: Sequence[str]) -> str:
    tasks = Counter(str(row["task"]) for row in rows)
    runs = sorted({str(row["run"]) for row in rows})
    lines = [
        *("---", "configs:", "- config_name: default", "  data_files: data/train.jsonl", "---"),
        f"# Episodes of {', '.join(runs)}",
        "",
        f"{len(rows)} of {chosen.found} episodes as {form}, written by harbor_gym {__version__}.",
        f"Mean reward {sum(row['reward'] for row in rows) / len(rows):.3f}.",
        *([f"Conditions: {' and '.join(where)}."] if where else []),
        "",
        "| task | episodes |",
        "|---|---|",
        *(f"| {task} | {count} |" for task, count in sorted(tasks.items())),
        *(["", "Left out:", ""] if chosen.left_out else []),
        *(f"- {count} {reason}" for reason, count in chosen.left_out.items() if count),
    ]
    return "\n".join(lines) + "\n"
