"""Read and write transcripts: one JSON document per episode."""

import functools
import json
import math
import re
import time
import zipfile
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harbor_gym._runtime.files import StrPath, naming, open_regular, replace_text, replacing, why_unreadable
from harbor_gym._runtime.json_files import read_grown
from harbor_gym._runtime.traces import is_wanted, left_to_caller, trace_episode
from harbor_gym.errors import UsageError
from harbor_gym.outcomes import describe
from harbor_gym.types import (
    Command,
    Compaction,
    EndReason,
    EpisodeInfo,
    Exchange,
    Rollout,
    RoutedExperts,
    Sample,
    Summary,
    TokenTransition,
    Transcript,
    Turn,
)

TRANSCRIPT_FORMAT = 2
"""Version of the transcript's format."""

RESULT_NAME = "eval.json"
"""The file in an evaluation's folder with its result, written at the end."""

TASKS_NAME = "tasks.json"
"""The file in a training run's folder with its tasks."""

JOURNAL_NAME = "episodes.jsonl"
"""The file in an evaluation's folder with the episodes so far, one a line."""

_KEPT_INFO = (
    *("parse_error", "exit_code", "waits", "omitted_bytes", "confirmation_pending", "metrics", "instruction"),
    *("rewards", "step_rewards", "verifier_output", "verifier_files", "compacted"),
)
_KEPT_START = (
    *("task", "sandbox", "instruction", "transport", "setup", "fork_mode", "copies", "rollbacks", "metrics"),
)
_LOGPROB_DIGITS = 4
_GROUP = re.compile(r"(?:(?P<split>\w+)/)?batch_(?P<batch>\d+)/(?:group_(?P<group>\d+)|[^/]+)")


def episode_name(labels: Mapping[str, Any]) -> str:
    """Return an episode's name for people, such as "episode 3 of devops_task, batch 2, group 1".

    Args:
        labels: A transcript's labels, all optional: ``task``, ``episode`` (from 1) and ``group`` (in a training run the
            group's folder of transcripts).
    """
    number, task = labels.get("episode"), labels.get("task")
    name = "an episode" if number is None else f"episode {number}"
    name += f" of {task}" if task else ""
    if (place := _GROUP.fullmatch(str(labels.get("group")))) is None:
        return name
    if place["split"] == "test":
        return f"{name}, test after batch {int(place['batch'])}" if int(place["batch"]) else f"{name}, test"
    return f"{name}, batch {int(place['batch'])}" + (f", group {place['group']}" if place["group"] else "")


def write_transcript(
    path: StrPath,
    transcript: Transcript,
    *,
    labels: dict[str, Any],
    error: str | None = None,
    dropped: str | None = None,
) -> None:
    """Write an episode to ``path``, whole or not at all.

    Args:
        path: The file; its folder is made if it is missing.
        transcript: The episode.
        labels: Further keys of the document, such as the episode's task, group and number.
        error: The infrastructure error that ended the episode, if one did; the reward is then left out.
        dropped: Why the episode was dropped, if it was; the reward is then left out.
    """
    document = _document(transcript, labels, error, dropped)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if any(turn.routed_experts is not None for turn in transcript.turns):
        _write_routes(path, transcript.turns)
        document["routed_experts"] = _routes_path(path).name
    replace_text(path, json.dumps(document, ensure_ascii=False, indent=1))
    if "snapshot" not in labels:
        _trace(transcript, document)


def _routes_path(path: Path) -> Path:
    return path.with_suffix(".experts.npz")


def _write_routes(path: Path, turns: Sequence[Turn]) -> None:
    """Write the routed experts of each turn beside a transcript, packed, by the turn's number and its first row."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for number, turn in enumerate(turns, start=1):
        if (routes := turn.routed_experts) is not None:
            least = np.min_scalar_type(int(routes.experts.max(initial=0)))
            arrays[f"turn_{number}_from_{routes.start}"] = routes.experts.astype(least)
    with replacing(_routes_path(path)) as partial:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            np.savez_compressed(file, **arrays)


def read_routed_experts(path: StrPath, transcript: Transcript) -> Transcript:
    """Return a transcript with the routed experts of its turns, which :func:`read_transcript` leaves in their file.

    Args:
        path: The transcript's file.
        transcript: What was read from it.

    Raises:
        UsageError: The file beside the transcript is missing or damaged.
    """
    import numpy as np

    place, turns = _routes_path(Path(path)), list(transcript.turns)
    try:
        with open_regular(place, place.parent) as file, np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                _, number, _, start = name.split("_")
                place_of = int(number) - 1
                turns[place_of] = replace(turns[place_of], routed_experts=RoutedExperts(int(start), arrays[name]))
    except (OSError, ValueError, IndexError, zipfile.BadZipFile) as exc:
        raise UsageError(f"{place}: the routed experts of {path} can't be read ({exc}): copy both files") from exc
    return replace(transcript, turns=turns)


def traced[**P](play: Callable[P, Awaitable[Rollout]]) -> Callable[P, Coroutine[Any, Any, Rollout]]:
    """Make a function that plays an episode send its trace, if one is wanted and no caller sends it."""

    @functools.wraps(play)
    async def play_traced(*args: P.args, **kwargs: P.kwargs) -> Rollout:
        with left_to_caller():
            rollout = await play(*args, **kwargs)
        trace_transcript(rollout.transcript, task=rollout.task_name, error=rollout.error)
        return rollout

    return play_traced


def trace_transcript(transcript: Transcript, *, task: str, error: BaseException | None = None) -> None:
    """Send the trace of an ended episode that has no file, if one is wanted and no caller sends it.

    Args:
        transcript: The episode.
        task: The name of the task's directory.
        error: The error that ended the episode, if one did.
    """
    if is_wanted():
        why = None if error is None else describe(error)
        _trace(transcript, _document(transcript, {"task": task}, why))


def _trace(transcript: Transcript, document: Mapping[str, Any]) -> None:
    if is_wanted() and not transcript.is_traced:
        transcript.is_traced = True
        trace_episode(document if transcript.cut is None else {**document, "end": transcript.cut[1]})


def _document(
    transcript: Transcript, labels: Mapping[str, Any], error: str | None, dropped: str | None = None
) -> dict[str, Any]:
    last = transcript.last_info
    end_reason = last.get("end_reason") if last else None
    if dropped is not None:
        end_reason, labels = EndReason.DROPPED, {**labels, "dropped": dropped}
    return {
        "format": TRANSCRIPT_FORMAT,
        **labels,
        "end_reason": EndReason.INFRASTRUCTURE_ERROR if error else end_reason,
        "error": error,
        "reward": None if error or dropped else transcript.reward,
        "rewards": last.get("rewards") if last else None,
        "step_rewards": last.get("step_rewards") if last else None,
        "breakage": last.get("breakage") if last else None,
        "stopped_processes": list(
            dict.fromkeys(name for info in transcript.infos for name in info.get("stopped_processes", ()))
        ),
        "verifier": _verifier(last),
        **({"services": dict(last["service_output"])} if last and "service_output" in last else {}),
        "settings": transcript.settings,
        "system_prompt": transcript.system_prompt,
        **({"tools": list(transcript.tools)} if transcript.tools else {}),
        "start": _kept(transcript.start_info, _KEPT_START),
        "started": round(transcript.started, 3),
        "seconds": round(time.time() - transcript.started, 3),
        "turns": [_turn(turn) for turn in transcript.turns],
        "final_observation": transcript.final_observation,
        **({} if transcript.tokens is None else {"tokens": write_tokens(transcript.tokens)}),
    }


def read_transcript(path: StrPath) -> tuple[Transcript, dict[str, Any]]:
    """Return an episode that :func:`write_transcript` wrote, and the whole document.

    Both include the turns that :func:`append_turns` added.

    Raises:
        UsageError: The file can't be read, or is not a transcript of this version.
    """
    path, remedy = Path(path), "name the transcript of an episode, or a snapshot"
    try:
        document, added = read_grown(path, remedy=remedy)
        if document.get("format") != TRANSCRIPT_FORMAT:
            raise UsageError(f"{path} is not a transcript of format {TRANSCRIPT_FORMAT}: {remedy}")
        for line in added:
            _extend(document, line)
        turns = read_turns(document["turns"])
        transcript = Transcript(turns, document["final_observation"], document["started"], document["system_prompt"])
        transcript.settings = document.get("settings")
        transcript.tools = document.get("tools", ())
        transcript.tokens = read_tokens(document["tokens"]) if "tokens" in document else None
        transcript.start_info = cast("EpisodeInfo", {"turn": 0, "metrics": {}, **document["start"]})
    except UsageError:
        raise
    except OSError as exc:
        raise UsageError(f"{path} can't be read: {why_unreadable(exc)}: {remedy}") from exc
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise UsageError(f"{path} is not a complete transcript ({exc!r}): {remedy}") from exc
    return transcript, document


def transcripts_of(run: StrPath) -> list[Path]:
    """Return the paths of a run's transcripts by their names. A sandbox may have made links and pipes among them.

    Raises:
        UsageError: There are none.
    """
    found = sorted((Path(run) / "transcripts").rglob("*.json"))
    if not found:
        raise no_transcript(run)
    return found


def no_transcript(run: StrPath) -> UsageError:
    """Return the error about a run without a complete transcript."""
    return UsageError(f"{run} has no transcript: give the folder of a run that has the folder transcripts")


def conversations(turns: Sequence[Turn], tokens: Sequence[int]) -> list[Sequence[int]]:
    """Return for each turn the token ids of its conversation, which begin with the turn's prompt and answer.

    Args:
        turns: An episode's turns.
        tokens: The token ids of its last conversation.
    """
    found: list[Sequence[int]] = []
    for turn in reversed(turns):
        tokens = tokens if turn.compaction is None else turn.compaction.tokens
        found.append(tokens)
    return found[::-1]


def transitions_of(turns: Sequence[Turn], tokens: Sequence[int]) -> list[TokenTransition]:
    """Return every prompt and what the policy answered, summaries as well, in the order of the answers.

    Args:
        turns: An episode's turns.
        tokens: The token ids of its last conversation.
    """
    found: list[TokenTransition] = []
    for turn, conversation in zip(turns, conversations(turns, tokens), strict=True):
        end = turn.prompt_tokens + turn.sampled_tokens
        answered, prompt = list(conversation[:end]), list(conversation[: turn.prompt_tokens])
        sample = Sample(
            answered[turn.prompt_tokens :], turn.logprobs, version=turn.version, routed_experts=turn.routed_experts
        )
        found.append(TokenTransition(prompt, sample, turn.reward, turn.info))
        for summary in turn.summaries:
            info: EpisodeInfo = {"turn": turn.info["turn"], "metrics": {}, "summary": summary.state}
            sample = Sample(list(summary.tokens), summary.logprobs, summary.stop_reason, version=summary.version)
            found.append(TokenTransition([*answered, *summary.request], sample, 0.0, info))
    return found


def append_turns(
    path: Path, transcript: Transcript, *, after: Transcript, messages: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Append the missing turns to a transcript's file, as one line. Readers ignore an incomplete last line.

    Args:
        path: The file that :func:`write_transcript` wrote, perhaps with lines of earlier calls.
        transcript: The episode.
        after: The episode as the file has it.
        messages: Chat messages to add to the document's ``snapshot.messages``.
    """
    added: dict[str, Any] = {
        "turns": [_turn(turn) for turn in transcript.turns[len(after.turns) :]],
        "final_observation": transcript.final_observation,
    }
    if transcript.tokens is not None:
        added["tokens"] = write_tokens(transcript.tokens[len(after.tokens or ()) :])
    if messages:
        added["messages"] = messages
    with naming(path), path.open("a", encoding="ascii") as file:
        file.write("\n" + json.dumps(added))


def _extend(document: dict[str, Any], added: Mapping[str, Any]) -> None:
    document["turns"] += added["turns"]
    document["final_observation"] = added["final_observation"]
    if "tokens" in added:
        document["tokens"] += " " + added["tokens"]
    if "messages" in added:
        document["snapshot"]["messages"] += added["messages"]


def write_tokens(tokens: Iterable[int]) -> str:
    """Return token ids as one line of numbers, separated by spaces."""
    return " ".join(map(str, tokens))


def read_tokens(text: str) -> list[int]:
    """Return the token ids that :func:`write_tokens` wrote.

    Raises:
        ValueError: ``text`` has something other than numbers and spaces.
    """
    return [int(token) for token in text.split()]


def add_logprobs(path: Path, logprobs: Sequence[Sequence[float] | None]) -> None:
    """Add log-probabilities to a transcript that was written before they were known.

    Args:
        path: The transcript; if it does not exist, nothing happens.
        logprobs: For each answer, a turn's or the summaries' after it, the log-probability of each sampled token, in
            nats; None if unknown.
    """
    if not path.is_file():
        return
    document = json.loads(path.read_text(encoding="utf-8"))
    answers = [answer for turn in document["turns"] for answer in (turn, *turn.get("summaries", ()))]
    for answer, values in zip(answers, logprobs, strict=False):
        if values is not None:
            answer["logprobs"] = _rounded(values)
    replace_text(path, json.dumps(document, ensure_ascii=False, indent=1))


def _verifier(info: EpisodeInfo | None) -> dict[str, Any] | None:
    """Return the output and files of the last verifier; None if none ran."""
    if info is None or "rewards" not in info:
        return None
    return {"output": info.get("verifier_output", ""), "files": info.get("verifier_files", {})}


def _kept(info: EpisodeInfo | None, keys: Sequence[str]) -> dict[str, Any]:
    known = cast(dict[str, Any], info or {})
    return {key: known[key] for key in keys if key in known}


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, _LOGPROB_DIGITS) if math.isfinite(value) else None for value in values]


def _read_logprobs(values: list[float | None] | None) -> list[float] | None:
    return None if values is None else [-math.inf if value is None else value for value in values]


def read_turns(written: Sequence[dict[str, Any]]) -> list[Turn]:
    """Return the turns of a transcript's document.

    Raises:
        KeyError, TypeError, ValueError: They are not complete.
    """
    return [_read_turn(number, turn) for number, turn in enumerate(written, start=1)]


def _read_turn(number: int, turn: dict[str, Any]) -> Turn:
    commands, info = turn.get("commands"), {key: turn[key] for key in _KEPT_INFO if key in turn}
    return Turn(
        observation=turn["observation"],
        action=turn["action"],
        info=cast("EpisodeInfo", {"metrics": {}, **info, "turn": number}),
        reward=turn["reward"],
        prompt_tokens=turn["prompt_tokens"],
        sampled_tokens=turn["sampled_tokens"],
        logprobs=_read_logprobs(turn.get("logprobs")),
        version=turn.get("version"),
        thinking_sec=turn["thinking_sec"],
        queued_sec=turn.get("queued_sec"),
        commands=None if commands is None else tuple(Command(keys, seconds) for keys, seconds in commands),
        summaries=tuple(map(_read_summary, turn.get("summaries", ()))),
        compaction=read_compaction(turn.get("compaction")),
    )


def _read_summary(written: Mapping[str, Any]) -> Summary:
    return Summary(
        written["text"],
        read_tokens(written["request"]),
        read_tokens(written["tokens"]),
        written["stop_reason"],
        logprobs=_read_logprobs(written["logprobs"]),
        version=written.get("version"),
        thinking_sec=written["thinking_sec"],
        queued_sec=written.get("queued_sec"),
    )


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "text": summary.text,
        "request": write_tokens(summary.request),
        "tokens": write_tokens(summary.tokens),
        "stop_reason": summary.stop_reason,
        **_sampling(summary),
    }


def _sampling(answer: Turn | Summary) -> dict[str, Any]:
    return {
        "thinking_sec": None if answer.thinking_sec is None else round(answer.thinking_sec, 3),
        "logprobs": None if answer.logprobs is None else _rounded(answer.logprobs),
        **({} if answer.version is None else {"version": answer.version}),
        **({} if answer.queued_sec is None else {"queued_sec": round(answer.queued_sec, 3)}),
    }


def _compaction(compaction: Compaction) -> dict[str, Any]:
    exchanges = [list(item) for item in compaction.exchanges]
    return {"kind": compaction.kind, "exchanges": exchanges, "tokens": write_tokens(compaction.tokens)}


def read_compaction(written: Mapping[str, Any] | None) -> Compaction | None:
    """Return the compaction in a turn of a transcript's document; None if there is none.

    Raises:
        KeyError, TypeError, ValueError: It is not complete.
    """
    if written is None:
        return None
    exchanges = tuple(Exchange(*item) for item in written["exchanges"])
    return Compaction(written["kind"], read_tokens(written["tokens"]), exchanges)


def _turn(turn: Turn) -> dict[str, Any]:
    given = turn.commands
    commands = {} if given is None else {"commands": [[item.keystrokes, item.duration_sec] for item in given]}
    return {
        "observation": turn.observation,
        "action": turn.action,
        **commands,
        "reward": turn.reward,
        "prompt_tokens": turn.prompt_tokens,
        "sampled_tokens": turn.sampled_tokens,
        **_sampling(turn),
        **({"summaries": [_summary(item) for item in turn.summaries]} if turn.summaries else {}),
        **({} if turn.compaction is None else {"compaction": _compaction(turn.compaction)}),
        **_kept(turn.info, _KEPT_INFO),
    }
