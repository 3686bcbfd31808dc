"""Find in played episodes what a task's files do not show: the same functions for a stored run and while one trains."""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym._runtime.shipped import folder_digest
from harbor_gym.checking.audit.kinds import LONGEST, finding
from harbor_gym.checking.audit.verdicts import ran_nothing
from harbor_gym.errors import UsageError
from harbor_gym.formats.call_forms import read_any
from harbor_gym.formats.parse import parse_action
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.tasks import SourcedTask
from harbor_gym.tasks.receipts import Evidence, Finding
from harbor_gym.transcripts import RESULT_NAME, TASKS_NAME, no_transcript, read_transcript, transcripts_of
from harbor_gym.types import ActionFormat, EndReason, Transcript, Turn

BY_EPISODE = (
    *("episodes/paid-without-work", "episodes/reward-written"),
    *("episodes/tests-read", "episodes/tests-skipped"),
)
"""Kinds that one episode shows; the others need several episodes of a task."""

FEWEST = 3
"""Episodes of a task with a verdict, below which nothing is said of their share."""

_SHOWN = 5
"""Episodes that a finding quotes."""

_MOST_TYPED = 100_000
"""Characters of a turn's commands that are read."""

_LONGEST_NAME = 200
"""Characters of a path or a variable's value, beyond which it is no name of ours: a policy can double both at will."""

_MOST_ECHOES = 200
"""Lines of a turn's commands that are looked for in what was shown."""

_REWARD_FOLDER, _TESTS_FOLDER = "/logs/verifier", "/tests"
_REWARD_NAME = re.compile(r"(?:^|/)verifier/reward\.(?:txt|json)$")
_SEPARATOR = re.compile(r"\n|;|&&|\|\|?|(?<![<>&\d])&(?![>&\d])")
_SILENCED = re.compile(r"[\d&]?>{1,2}[ \t]{0,4}/dev/null|\d?>&\d")
_JOINED = re.compile(r"[\"']\s*\+\s*[\"']|[\"'\\]")
_TOKEN = re.compile(r"[^\s=(),:;<>{}|&]+")
_REDIRECTED = re.compile(r">{1,2}\|?\s*([^\s;&|<>()]+)")
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(\S*)")
_PREFIX = re.compile(
    r"^(?:[({!\s]+|(?:if|then|do|else|while|until|time|sudo|nohup|exec|env|command|builtin)\s+|[A-Za-z_]\w*=\S*\s+)+"
)
_WRITERS = frozenset(
    "tee touch dd chmod chown chattr truncate mount mkfifo vi vim nano ed ex emacs".split()  # noqa: SIM905
)
_MOVERS = frozenset(("cp", "mv", "ln", "install", "rsync"))
_CODE_WRITES = re.compile(
    r"open\([^)\n]{0,300},\s{0,4}(?:mode=)?[wax]\+?b?\b|write_?text|write_?bytes|writeFile|File\.write|copyfile|\.rename\(|symlink"
)
_SILENT = frozenset(("echo", "printf", "mkdir", "rm", "rmdir", "cd", "pushd", "test", "[", "[["))
"""Commands that show nothing of a file that they name."""

_LISTERS = frozenset(("ls", "find", "stat", "du", "tree"))
_SEARCHERS = frozenset(("grep", "egrep", "fgrep", "rg", "ag"))
_IDLE = frozenset(": true clear exit logout pwd whoami id date ls echo printf cd".split())  # noqa: SIM905
_KEY = re.compile(r"C-[a-z]|Enter|Escape|Tab|Space|Up|Down|Left|Right")
_REFUSED = re.compile(
    r"no such file|cannot (?:access|open|stat|create|touch)|permission denied|not permitted|read-only file|not found"
    r"|not a directory|FileNotFoundError|PermissionError|does not exist",
    re.I,
)
_PROMPT = re.compile(r"^\[[^\]]*\]$|[#$%>]$")
_TELLS = re.compile(r"\btest|assert|reward", re.I)
_LISTED = re.compile(r"^/tests(?:/[\w.+/-]+)?(?::|$)")
_PATH_KEYS = ("path", "file_path", "filename", "file")
_CONTENT_KEYS = ("content", "contents", "file_text", "new_str", "new_string", "text")


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that is over."""

    name: str
    """Its transcript, for people."""

    transcript: Transcript
    reward: float | None
    """The verifier's; None without a verdict."""

    limit: str | None = None
    """The limit that ended it, by its end reason; None if none did."""

    output: str = ""
    """What the verifier printed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What remains of an episode for the findings about several."""

    name: str
    reward: float
    limit: str | None = None


def limit_of(reason: str | None) -> str | None:
    """Return an end reason if it is a limit's."""
    return reason if reason in {one.value for one in EndReason if one.is_truncation} else None


def find_in_runs(runs: Iterable[StrPath], tasks: Sequence[SourcedTask]) -> dict[str, list[Finding]]:
    """Return what the stored transcripts of runs show, by the name of the task here.

    Episodes of a task whose files have changed since are left out, where the run has the digests of its tasks.

    Args:
        runs: Folders of training runs and evaluations.
        tasks: The tasks as :func:`harbor_gym.tasks.resolve_tasks` returns them.

    Raises:
        UsageError: A folder has no transcript.
    """
    by_kind: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    ended: dict[str, list[Ended]] = defaultdict(list)
    for run in map(Path, runs):
        names = names_here(run, tasks)
        for path, transcript, document in read_transcripts(run):
            name = names.get(str(document.get("task") or path.parent.name))
            if name is None:
                continue
            played = _stored(str(path), transcript, document)
            for one in find_in_episode(played):
                by_kind[name][one.kind].append(one)
            if played.reward is not None:
                ended[name].append(Ended(played.name, played.reward, played.limit))
    return {
        name: [
            *(_merged(found, len(ended[name])) for found in by_kind[name].values()),
            *find_in_task(ended[name]),
        ]
        for name in {**by_kind, **ended}
    }


def tasks_of(run: StrPath) -> list[Path]:
    """Return the directories of a run's tasks that are still there.

    Raises:
        UsageError: There is none, or the folder has no transcript.
    """
    rows: list[dict[str, Any]] = object_or_empty(Path(run) / TASKS_NAME).get("tasks") or []
    paths = [row.get("path") for row in rows]
    if not paths:
        latest = {path.parent: path for path in transcripts_of(run)}
        paths = [(document.get("settings") or {}).get("task_dir") for _, _, document in _read(latest.values())]
    found = [Path(path) for path in dict.fromkeys(paths) if isinstance(path, str) and Path(path, "task.toml").is_file()]
    if not found:
        raise UsageError(f"{run} names no task that is still there: name the tasks' sources, too")
    return found


def names_here(run: Path, tasks: Sequence[SourcedTask]) -> dict[str, str]:
    """Return for each task of a run whose files are the same here: its name there → its name here."""
    rows: list[dict[str, Any]] | None = object_or_empty(run / TASKS_NAME).get("tasks")
    if rows is not None:
        here = {task.digest: task.name for task in tasks}
        return {row["name"]: here[row["digest"]] for row in rows if row["digest"] in here}
    written = (object_or_empty(run / RESULT_NAME).get("provenance") or {}).get("tasks") or {}
    names = {task: task.path.resolve().name for task in tasks}
    return {
        name: task.name
        for task, name in names.items()
        if name not in written or written[name]["digest"] == folder_digest(task.path)
    }


def read_transcripts(run: Path) -> Iterator[tuple[Path, Transcript, dict[str, Any]]]:
    """Yield the transcripts of a run that can be read.

    Raises:
        UsageError: The folder has none.
    """
    read = False
    for found in _read(transcripts_of(run)):
        read = True
        yield found
    if not read:
        raise no_transcript(run)


def _read(paths: Iterable[Path]) -> Iterator[tuple[Path, Transcript, dict[str, Any]]]:
    """Yield the transcripts that can be read."""
    for path in paths:
        if path.is_symlink() or not path.is_file():  # a sandbox may have made it
            continue
        with contextlib.suppress(UsageError):
            yield path, *read_transcript(path)


def _stored(name: str, transcript: Transcript, document: Mapping[str, Any]) -> Played:
    output = (document.get("verifier") or {}).get("output") or ""
    return Played(name, transcript, document.get("reward"), limit_of(document.get("end_reason")), str(output))


def _merged(found: Sequence[Finding], number: int) -> Finding:
    """Return one finding for those of one kind in several episodes of a task."""
    first = found[0]
    if number <= 1:
        return first
    evidence = [one.evidence[0] for one in found[:_SHOWN] if one.evidence]
    return finding(first.kind, f"{len(found)} of {number} episodes: {first.message}", evidence)


def find_in_task(ended: Sequence[Ended]) -> Iterator[Finding]:
    """Yield what a task's verified episodes show together."""
    if len(ended) < FEWEST:
        return
    limited = [one for one in ended if one.limit is not None]
    if 2 * len(limited) > len(ended):
        reasons = ", ".join(sorted({str(one.limit) for one in limited}))
        message = f"{len(limited)} of {len(ended)} episodes end at a limit ({reasons})"
        yield finding("episodes/limits-hit", message, map(_quoted, limited[:_SHOWN]))
    if all(one.reward <= 0 for one in ended):
        yield finding("episodes/never-paid", f"the reward of all {len(ended)} episodes is 0", map(_quoted, ended[:1]))
    if all(one.reward >= 1 for one in ended):
        yield finding("episodes/always-paid", f"the reward of all {len(ended)} episodes is 1", map(_quoted, ended[:1]))


def _quoted(ended: Ended) -> Evidence:
    return Evidence(episode=ended.name, text=ended.limit, reward=ended.reward)


def find_in_episode(played: Played) -> list[Finding]:
    """Return what one episode shows, at most one finding of a kind. Reads text alone, and never raises."""
    turns = list(_turns_of(played.transcript))
    found: dict[str, Finding] = {}

    def add(kind: str, message: str, turn: int | None, text: str) -> None:
        quoted = Evidence(episode=played.name, turn=turn, text=text.strip()[:LONGEST] or None, reward=played.reward)
        found.setdefault(kind, finding(kind, message, [quoted]))

    for kind, message, turn, text in _find_in_commands(turns):
        add(kind, message, turn, text)
    if played.reward is not None and played.reward > 0:
        if not any(turn.has_worked for turn in turns):
            last = turns[-1] if turns else None
            message = "the reward is paid, and no command of the policy changes anything"
            add("episodes/paid-without-work", message, last and last.number, last.action if last else "")
        if (what := ran_nothing(played.output)) is not None:
            add("episodes/tests-skipped", f"the episode is paid although {what[1]}", None, played.output[-LONGEST:])
    return list(found.values())


# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Typed:
    """A turn as its commands, and what was shown after them."""

    number: int
    action: str
    commands: str
    shown: str
    has_worked: bool
    """Whether the turn may have changed anything; also where that can't be told."""

    has_failed: bool
    """Whether the last command has an exit code other than 0."""


def _turns_of(transcript: Transcript) -> Iterator[_Typed]:
    turns = transcript.turns
    definitions = [_definition(tool) for tool in transcript.tools]
    own_format = (transcript.settings or {}).get("action_format")
    own_format = ActionFormat(own_format) if own_format in ActionFormat else None
    may_call = own_format in (None, ActionFormat.BASH_TOOL)  # tools of which nothing is known here
    for place, turn in enumerate(turns):
        shown = turns[place + 1].observation if place + 1 < len(turns) else transcript.final_observation
        commands, has_calls = _commands(turn, own_format, definitions)
        is_unread = commands is None and turn.info.get("parse_error") is None
        is_unknown = is_unread and (may_call or bool(turn.info.get("waits")))
        text = "\n".join(commands or ())[:_MOST_TYPED]
        has_worked = is_unknown or has_calls or any(map(_works, commands or ()))
        has_failed = turn.info.get("exit_code") not in (None, 0)
        yield _Typed(place + 1, turn.action, text, shown, has_worked, has_failed)


def _definition(tool: Mapping[str, Any]) -> ToolDefinition:
    function = tool.get("function") or {}
    return ToolDefinition(str(function.get("name")), function.get("description", ""), function.get("parameters", {}))


def _commands(
    turn: Turn, own_format: ActionFormat | None, tools: Sequence[ToolDefinition]
) -> tuple[Sequence[str] | None, bool]:
    """Return what a turn typed, None if that can't be read, and whether it called a tool that is no terminal."""
    if turn.commands is not None:
        return [command.keystrokes for command in turn.commands], False
    if tools:
        return [_typed_by(call) for call in read_any(turn.action, tools)[1]], False
    formats = (ActionFormat.TERMINUS_JSON, ActionFormat.TERMINUS_XML) if own_format is None else (own_format,)
    for each in formats:
        parsed = parse_action(turn.action, format=each)
        if parsed.error is None:
            return [command.keystrokes for command in parsed.commands], bool(parsed.calls)
    return None, False


def _typed_by(call: ToolCall) -> str:
    """Return a tool's call as a command: a tool that is given a path and a text writes the file."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    if not isinstance(arguments, dict):
        return call.arguments
    arguments = cast("dict[str, Any]", arguments)
    path = next((arguments[key] for key in _PATH_KEYS if isinstance(arguments.get(key), str)), None)
    if path is not None and any(key in arguments for key in _CONTENT_KEYS):
        return f"tee {path}"
    return "\n".join(value for value in arguments.values() if isinstance(value, str))


def _works(keystrokes: str) -> bool:
    """Return whether keystrokes may change anything: an empty line, a key's name and a look at a folder do not."""
    text = _SILENCED.sub(" ", keystrokes)
    if _KEY.fullmatch(text.strip()):
        return False
    if re.search(r"[>`]|\$\(", text):
        return True
    words = (part.split() for part in _SEPARATOR.split(text))
    return any(line and not line[0].startswith("#") and line[0] not in _IDLE for line in words)


class _Shell:
    """What is known of the shell from the commands so far."""

    def __init__(self) -> None:
        self.folder = ""
        self.values: dict[str, str] = {}

    def expand(self, text: str) -> str:
        return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda found: self.values.get(found[1], found[0]), text)

    def path(self, word: str) -> str:
        if word.startswith("/"):
            return posixpath.normpath(word)
        return posixpath.normpath(posixpath.join(self.folder, word)) if self.folder else word

    def note(self, segment: str) -> None:
        if assigned := _ASSIGNED.fullmatch(segment):
            self.values[assigned[1]] = assigned[2][:_LONGEST_NAME]
        words = segment.split()
        if words and words[0] in ("cd", "pushd"):
            self.folder = self.path(words[1]) if len(words) > 1 else ""
            self.folder = self.folder if self.folder.startswith("/") and len(self.folder) < _LONGEST_NAME else ""


def _is_within(path: str, folder: str) -> bool:
    """Return whether a path, perhaps with wildcards, is a folder or in it."""
    if not path.startswith("/"):
        return False
    wanted, parts = folder.split("/")[1:], path.split("/")[1:]
    pairs = list(zip(wanted, parts, strict=False))
    return len(pairs) == len(wanted) and all(
        len(part) < _LONGEST_NAME and re.search(r"\w", part) is not None and fnmatchcase(name, part)
        for name, part in pairs
    )


def _is_rewards(path: str) -> bool:
    return _is_within(path, _REWARD_FOLDER) or _REWARD_NAME.search(path) is not None


def _find_in_commands(turns: Iterable[_Typed]) -> Iterator[tuple[str, str, int, str]]:
    """Yield kind, message, turn and text of what the commands write and read of the grading."""
    shell, has_own_tests = _Shell(), False
    for turn in turns:
        segments = [segment for part in _SEPARATOR.split(turn.commands) if (segment := part.strip())]
        answer = _Answer(turn)
        for place, raw in enumerate(segments):
            if raw.startswith("#"):
                continue
            segment = shell.expand(_JOINED.sub("", _SILENCED.sub(" ", raw)))
            word = _first_word(segment)
            paths = [shell.path(token) for token in _tokens(segment, word)]
            written = _written(segment, word, shell, paths)
            failed = turn.has_failed and place == len(segments) - 1
            is_silenced = _SILENCED.search(raw) is not None
            if word not in ("cd", "pushd") or not (
                failed or is_silenced or answer.refuses_tests or answer.refuses_reward  # it may have gone nowhere
            ):
                shell.note(segment)
            if any(map(_is_rewards, written)):
                if not failed and not answer.refuses_reward:
                    yield "episodes/reward-written", "the policy writes where the reward is written", turn.number, raw
                continue
            if any(map(_is_tests, written)) or (word == "mkdir" and any(map(_is_tests, paths))):
                if failed or answer.refuses_tests or word == "mkdir":
                    has_own_tests = True  # there were none, and what it makes there is its own
                elif not has_own_tests:
                    yield "episodes/reward-written", "the policy changes the tests", turn.number, raw
                continue
            names_tests = not has_own_tests and any(map(_is_tests, paths))
            names_verdict = any(_is_rewards(path) and path != _REWARD_FOLDER for path in paths)
            if word in _SILENT or not (names_tests or names_verdict):
                continue
            is_refused = answer.refuses_tests if names_tests else answer.refuses_reward
            if not is_refused and answer.is_of(word, len(segments), is_silenced=is_silenced):
                what = "the tests" if names_tests else "what the verifier wrote"
                text = "\n".join((raw, *answer.lines[:3]))
                yield "episodes/tests-read", f"the policy reads {what}", turn.number, text
        if not has_own_tests and (listed := answer.listed()) is not None:
            yield "episodes/tests-read", "the policy is shown the tests", turn.number, listed


class _Answer:
    """What a turn's commands printed, read where it matters."""

    def __init__(self, turn: _Typed) -> None:
        self._turn = turn

    @cached_property
    def _shown(self) -> list[str]:
        return [line for line in map(str.rstrip, self._turn.shown.splitlines()) if line]

    @cached_property
    def lines(self) -> list[str]:
        """Its lines without prompts and the commands themselves."""
        typed = [line for line in map(str.strip, self._turn.commands.splitlines()[:_MOST_ECHOES]) if line]
        return [line for line in self._shown if not _PROMPT.search(line) and not any(echo in line for echo in typed)]

    @cached_property
    def _errors(self) -> list[str]:
        return [line for line in self._shown if _REFUSED.search(line)]

    @cached_property
    def refuses_tests(self) -> bool:
        """Whether an error is about the tests."""
        return any(_TESTS_FOLDER in line for line in self._errors)

    @cached_property
    def refuses_reward(self) -> bool:
        return any("/logs" in line or "reward." in line for line in self._errors)

    @cached_property
    def _says(self) -> bool:
        return not set(self.lines) <= set(self._errors)

    @cached_property
    def _tells(self) -> bool:
        return any(map(_TELLS.search, self.lines))

    def is_of(self, word: str, commands: int, *, is_silenced: bool) -> bool:
        """Return whether a command that reads has read something. A copy says nothing where it succeeds."""
        if (is_silenced and (commands > 1 or word in _MOVERS)) or (word in _LISTERS and commands > 1):
            return self._tells
        return self._says or word in _MOVERS or word == "tar"

    def listed(self) -> str | None:
        """Return the line that lists the tests, if there is one."""
        return next(filter(_LISTED.match, self.lines), None) if _TESTS_FOLDER in self._turn.shown else None


def _is_tests(path: str) -> bool:
    return _is_within(path, _TESTS_FOLDER)


def _tokens(segment: str, word: str) -> list[str]:
    """Return what may be a path in a command: not what a search looks for."""
    if word not in _SEARCHERS:
        return _TOKEN.findall(segment)
    try:
        split = shlex.split(segment)
    except ValueError:
        split = segment.split()
    options = [word for word in split[1:] if not word.startswith("-")]
    return options[1:]


def _first_word(segment: str) -> str:
    words = _PREFIX.sub("", f"{segment} ").split()
    return posixpath.basename(words[0]) if words else ""


def _written(segment: str, word: str, shell: _Shell, paths: Sequence[str]) -> list[str]:
    """Return the paths that a command writes, as far as its text says."""
    redirected = [shell.path(target) for target in _REDIRECTED.findall(segment)]
    if word in _WRITERS or (word == "sed" and " -i" in segment) or _CODE_WRITES.search(segment):
        return [*redirected, *paths]
    return [*redirected, *paths[-1:]] if word in _MOVERS else redirected
