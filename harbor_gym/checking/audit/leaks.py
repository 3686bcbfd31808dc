"""Find what the policy is given and should not be: the solution, the tests, their expected results."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath

from harbor_gym.checking.audit.contents import (
    Carrier,
    Content,
    TaskContents,
    is_environment,
    is_seen,
    line_of,
)
from harbor_gym.checking.audit.kinds import at, finding
from harbor_gym.tasks.receipts import Evidence, Finding

_CODE = {
    *(".sh", ".bash", ".py", ".js", ".ts", ".rb", ".pl", ".c", ".cc", ".cpp", ".go", ".rs", ".java", ".sql", ".awk"),
    *(".patch", ".diff", ".r", ".lua", ".php", ".scala", ".kt", ".lean", ".v", ".hs", ".jl", ".m"),
}
_SHORTEST_UNIT = 30
"""Characters that code must have to be recognised."""
_SHORTEST_TEST = 80
_SHORTEST_VALUE = 6
_BOILERPLATE = re.compile(r"#!.*|set [-+][a-z].*|cd \S+(?: \|\| exit(?: \d)?)?|exit 0|[\W_]*|fi|done|else|then")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)^\s*\2\s*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^\s*(?:#(?!!)|//|--|;|REM\b)\s?")
_ANSWER = re.compile(
    r"(?:^|[^a-z])(?:expected|answers?|golden|gold|truth|ground|oracle|solutions?|solved)(?![a-z])", re.I
)
_TESTS_GIVEN = re.compile(
    r"\b(?:pass(?:es|ing)?|run(?:s|ning)?|make|satisf\w+|existing|provided|visible)\b[^.\n]{0,60}\btests?\b"
    r"|\btests?\b[^.\n]{0,60}\b(?:pass|fail)(?:es|ing|s)?\b|\bpytest\b|\btest suite\b",
    re.I,
)
_IS_TEST = re.compile(r"^\s*assert\b|self\.assert|\bassert\w*\(|\bexpect\(|reward\.(?:txt|json)|\bEXPECTED\b", re.M)
_LITERALS = re.compile(
    r"""(?:==|!=|\bis\b|=|-eq|,|\bin\b|grep\s+(?:-\w+\s+)*|assertEqual\([^,]*,|expected\w*["']?\s*[:=])\s*["']([^"'\n]{4,200})["']""",
    re.I,
)
_BARE = re.compile(r"\bexpected\w*\s*[:=]\s*([\w.+-]{4,200})", re.I)
_SETTINGS = re.compile(
    r"(?:^|_)(?:VERSION|PORT|PATH|HOME|LANG|LC_\w+|USER|DIR|URL|HOST|TZ|SHELL|NAME|LEVEL|MODE|FORMAT)$"
)
_ENV = re.compile(r"^\s*(?:ENV|ARG|export)\s+(.+)$|^\s*-?\s*([A-Z][A-Z0-9_]+)\s*[:=]\s*(\S.*)$", re.M)
_PAIR = re.compile(r"""([A-Za-z_]\w*)(?:=|\s+)(?:"([^"]*)"|'([^']*)'|(\S+))""")
_TOLD = re.compile(r"\b(?:answer|solution)\b(?:\s+(?:is|will be|should be|must be)\b|\s*[:=])[\s\"'`*]*$", re.I)


def find_leaks(contents: TaskContents) -> Iterator[Finding]:
    """Yield a finding for each text that the policy sees with the solution, the tests or an expected result in it."""
    seen = [found for found in contents.files if is_seen(found.file)] + contents.hidden
    yield from _find_code(contents, seen)
    yield from _find_expected_files(contents, seen)
    yield from _find_expected_values(contents, seen)


# -- code --------------------------------------------------------------------------------------------------------------


def _find_code(contents: TaskContents, seen: list[Content]) -> Iterator[Finding]:
    texts = [(found, _plain(found.text), _plain(found.text, uncomment=True)) for found in seen]
    solution = [found for found in contents.below("solution") if found.suffix in _CODE or _ANSWER.search(found.name)]
    others = [found for found in solution if found.name != "solve.sh"]
    tests_are_given = bool(_TESTS_GIVEN.search(contents.instruction))
    for kind, files in (("leak/solution", solution), ("leak/tests", contents.below("tests"))):
        for file in files:
            is_test = kind == "leak/tests"
            if is_test and (file.suffix not in _CODE or not _IS_TEST.search(file.text)):
                continue
            for unit in _units(file, _SHORTEST_TEST if is_test else _SHORTEST_UNIT):
                for place, plain, uncommented in texts:
                    if unit not in plain and unit not in uncommented:
                        continue
                    if is_test and (tests_are_given or _mentions(contents.instruction, place)):
                        continue
                    is_copy = place.name == file.name and place.carrier is Carrier.FILE and is_environment(place.file)
                    if not is_test and is_copy and len(others) > 1:
                        continue  # a file that the solution has beside the one that it changes
                    first = unit.partition("\n")[0]
                    line = place.line or line_of(place.text, first.split(" ")[0] if first not in place.text else first)
                    what = "a test" if is_test else "the solution"
                    yield finding(
                        kind,
                        f"{place.file} has {what}: {file.file}{_how(place)}",
                        [at(place.file, line, first), at(file.file)],
                    )
                    break
                else:
                    continue
                break


def _units(file: Content, shortest: int) -> Iterator[str]:
    """Yield the code of a file, and of each file that it writes."""
    written = _HEREDOC.finditer(file.text) if file.suffix in (".sh", ".bash") else ()
    bodies = [file.text, *(found[3] for found in written)]
    for body in bodies:
        unit = _plain(body)
        if len(unit) >= shortest:
            yield unit


def _plain(text: str, *, uncomment: bool = False) -> str:
    """Return the lines without comments, blanks and what every script has; commented code counts if asked for."""
    if "\\n" in text and text.count("\\n") > text.count("\n"):
        text = text.replace("\\n", "\n").replace('\\"', '"')  # a text in JSON, or printf's
    lines: list[str] = []
    for line in text.split("\n"):
        if _COMMENT.match(line) is not None:
            if not uncomment:
                continue
            line = _COMMENT.sub("", line)
        line = " ".join(line.removeprefix("RUN ").split())
        if not _BOILERPLATE.fullmatch(line):
            lines.append(line)
    return "\n".join(lines)


# -- expected results --------------------------------------------------------------------------------------------------


def _find_expected_files(contents: TaskContents, seen: list[Content]) -> Iterator[Finding]:
    """Find files of expected results: of tests/, or that the solution copies into place."""
    expected = [found for found in contents.below("tests") if found.suffix not in _CODE and _ANSWER.search(found.file)]
    for file in expected:
        core = _core(file.text)
        if len(core) < 8:
            continue
        for place in seen:
            if place.name == "instruction.md" or _mentions(_honest(contents), place):
                continue
            if core in _core(place.text):
                message = f"{place.file} holds the expected result {file.file}{_how(place)}"
                yield finding("leak/expected", message, [at(place.file, place.line), at(file.file)])
                break


def _find_expected_values(contents: TaskContents, seen: list[Content]) -> Iterator[Finding]:
    values = _expected_values(contents)
    honest = _honest(contents)
    programs = "\n".join(
        found.text
        for found in seen
        if is_environment(found.file) and found.carrier is Carrier.FILE and not _builds(found)
    )
    found_values: set[str] = set()
    for name, value, file, line in _variables(contents):
        if _SETTINGS.search(name.upper()) or re.search(rf"\b{re.escape(name)}\b", honest + programs):
            continue
        hits = [v for v in values if v in value and (len(v) >= 8 or _ANSWER.search(name) or _ANSWER_NAME.search(name))]
        decoded = [
            v for c in contents.hidden if c.file == file and c.carrier is Carrier.ENCODED for v in values if v in c.text
        ]
        for hit in (hits or decoded)[:1]:
            found_values.add(hit)
            message = f"the variable {name} has a value that the tests expect"
            yield finding("leak/expected", message, [at(file, line, f"{name}={value}"), values[hit]])
    for place in seen:
        if place.name == "instruction.md" and place.carrier is Carrier.FILE:
            yield from _find_told(place, values)
            continue
        hit = next((value for value in values if _stands_in(value, place)), None)
        if hit is None or hit in found_values or _mentions(honest, place) or _mentions(programs, place):
            continue
        if place.carrier is Carrier.GIT and re.search(r"\bgit\b|\bhistory\b|\bcommit", honest, re.I):
            continue
        found_values.add(hit)
        message = f"{place.file} has a value that the tests expect{_how(place)}"
        yield finding(
            "leak/expected", message, [at(place.file, place.line or line_of(place.text, hit), hit), values[hit]]
        )


def _stands_in(value: str, place: Content) -> bool:
    """Return whether a value stands where no right task has it: wrapped, in a build's comment, in an answer's file."""
    if len(value) < _SHORTEST_VALUE or value not in place.text:
        return False
    if place.carrier is not Carrier.FILE:
        return True
    if _builds(place):
        return re.search(rf"^\s*#.*{re.escape(value)}", place.text, re.M) is not None
    return _ANSWER.search(place.file.removeprefix("environment/")) is not None


_ANSWER_NAME = re.compile(r"RESULT|FLAG|SECRET|KEY|CHECK|HINT", re.I)


def _find_told(place: Content, values: dict[str, Evidence]) -> Iterator[Finding]:
    for value in values:
        start = place.text.find(value)
        if start >= 0 and _TOLD.search(place.text[:start]):
            message = f"{place.file} tells the answer that the tests expect"
            yield finding("leak/expected", message, [at(place.file, line_of(place.text, value), value)])
            return


def _expected_values(contents: TaskContents) -> dict[str, Evidence]:
    """Return the distinctive values that the tests compare with, each with its place."""
    found: dict[str, Evidence] = {}
    given = contents.instruction
    for file in contents.below("tests"):
        if file.suffix not in _CODE:
            continue
        for match in (*_LITERALS.finditer(file.text), *_BARE.finditer(file.text)):
            value = match[1].strip()
            if value in given and not _TOLD.search(given[: given.find(value)]):
                continue
            if _is_distinctive(value):
                line = file.text.count("\n", 0, match.start(1)) + 1
                found.setdefault(value, at(file.file, line, file.text.split("\n")[line - 1]))
    return found


def _is_distinctive(value: str) -> bool:
    if (
        len(value) < 4
        or value.startswith(("/", "http", "-", "$", "~", "./"))
        or PurePosixPath(value).suffix.lower() in _CODE
    ):
        return False
    if re.fullmatch(r"\d+(?:\.\d+)?", value):
        return len(value) >= 4 and value.strip("0") not in ("1", "1.") and value not in ("8080", "3000", "utf8")
    if value.lower() in ("utf-8", "utf8", "ascii", "__main__", "true", "false", "none", "replace", "ignore"):
        return False
    has_digit = any(map(str.isdigit, value))
    return (has_digit and any(map(str.isalpha, value)) and len(value) >= 6) or len(value) >= 12


def _variables(contents: TaskContents) -> Iterator[tuple[str, str, str, int | None]]:
    """Yield name, value, file and line of each variable that the policy's sandbox has."""
    for file in contents.below("environment"):
        is_compose = "compose" in file.name and file.suffix in (".yaml", ".yml")
        if not (file.name.startswith("Dockerfile") or is_compose or file.name.startswith(".env")):
            continue
        for number, line in enumerate(file.text.split("\n"), start=1):
            match = _ENV.match(line)
            if match is None:
                continue
            pairs = f"{match[2]}={match[3]}" if match[2] else match[1]
            for pair in _PAIR.finditer(pairs):
                yield pair[1], pair[2] or pair[3] or pair[4] or "", file.file, number
    config = next((file for file in contents.files if file.file == "task.toml"), None)
    try:
        tables = tomllib.loads(config.text) if config is not None else {}
    except tomllib.TOMLDecodeError:
        return
    declared = tables.get("environment")
    variables = declared.get("env") if isinstance(declared, dict) else None
    if config is not None and isinstance(variables, dict):
        for name, value in variables.items():
            yield name, str(value), config.file, line_of(config.text, name)


def _honest(contents: TaskContents) -> str:
    """Return the texts by which an honest policy finds a file: the instruction and the solution."""
    return contents.instruction + "\n" + "\n".join(found.text for found in contents.below("solution"))


def _mentions(text: str, place: Content) -> bool:
    """Return whether a text names the file in which a content stands."""
    outer = PurePosixPath(place.file.partition("!")[0]).name
    return any(re.search(rf"(?<![\w.]){re.escape(name)}\b", text) for name in {outer, place.name} if len(name) > 1)


def _builds(place: Content) -> bool:
    return place.name.startswith("Dockerfile") or "compose" in place.name


def _core(text: str) -> str:
    return " ".join(text.split())


def _how(place: Content) -> str:
    return {
        Carrier.FILE: "",
        Carrier.ARCHIVE: ", in an archive",
        Carrier.ENCODED: ", encoded",
        Carrier.GIT: ", in git's objects",
    }[place.carrier]
