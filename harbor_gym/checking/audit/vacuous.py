"""Find verifiers that pay without a test: read from their files, a shell script line by line, Python by its syntax."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harbor_gym.checking.audit.contents import Content, TaskContents
from harbor_gym.checking.audit.kinds import at, finding
from harbor_gym.tasks.receipts import Finding

_RUNNER = re.compile(
    r"\b(?:pytest|unittest|nosetests|tox|jest|vitest|mocha|ctest|rspec|phpunit|bats)\b"
    r"|\b(?:npm|yarn|pnpm|bun)\s+(?:run\s+)?test|\b(?:go|cargo|dotnet|mvn|swift|mix|lake|dart|flutter|deno|zig)\s+\S*\s*test\b"
    r"|\b(?:make|gradlew?|\./gradlew)\s+\S*(?:test|check)\b"
    r"|(?:^|\s)(?:bash|sh|python3?|node|ruby|perl|Rscript|php|lua)\s+(?:-\w+\s+)*[\"']?\S*(?:test|check|verify|grade|validate)\S*"
    r"|^(?:\./|/tests/)\S*(?:test|check|verify|grade|validate)\S*"
)
_ONE = r"""["']?1(?:\.0+)?(?:\\n)?["']?"""
_PAYS = re.compile(
    rf"(?:echo|printf)\s+(?:-\w+\s+)?(?:['\"]%\w(?:\\n)?['\"]\s+)?{_ONE}\s*(?:>+|\|\s*tee)\s*\S*"
    rf"|(?:echo|printf)\s+.*reward\\?[\"']+\s*:\s*1(?:\.0)?\b.*(?:>+|\|\s*tee)|\b(?:reward|score)={_ONE}(?:\s|;|$)",
    re.I,
)
_CORRECTS = re.compile(
    r"(?:echo|printf)\s+[\"']?(?:0|\$\{?\w+).*>|reward[\"']?\s*[:=]\s*[\"']?(?:0|\$)|\brm\b.*reward|\breward=(?![\"']?1)",
    re.I,
)
_EATEN = re.compile(
    r"\|\|\s*(?:true|:|/bin/true|exit\s+0|echo\b[^&]*|printf\b[^&]*)\s*\)?\s*(?:;|$|then)|;\s*(?:true|:)\s*$"
)
_STATUS = re.compile(r"\$\?|\$\{\?\}")
_PIPE = re.compile(r"(?<!\|)\|(?![|&])")
_IGNORES = re.compile(r"^(?:#.*|\w+=\S*|set\s.*|export\s.*|local\s.*)?$")
_FAILS_FAST = re.compile(r"^set\s+-\w*e|^set\s+-o\s+errexit|^#!\S+(?:\s+\S+)?\s+-\w*e")
_PIPEFAIL = re.compile(r"\bset\b.*\bpipefail\b|\bset\s+-\w*o\s+pipefail|#!.*pipefail")
_OPENS = re.compile(r"^(?:if|for|while|until|case|select)\b|(?:\{|\()\s*$|^\{\s|^\w+\s*\(\)")
_CLOSES = re.compile(r"^(?:fi|done|esac|\}|\))\b|^[})]")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")


def find_vacuous(contents: TaskContents) -> Iterator[Finding]:
    """Yield the findings in a task's shell scripts and Python tests."""
    tests = contents.below("tests")
    for script in tests:
        if script.suffix in (".sh", ".bash"):
            yield from _read_script(script)
    yield from _read_python(tests)


# -- shell -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    depth: int


_FIRST = _Line(0, "", 0)


def _read_script(script: Content) -> Iterator[Finding]:
    lines = _lines(script.text)
    has_pipefail = any(_PIPEFAIL.search(line.text) for line in lines)
    fails_fast = any(_FAILS_FAST.search(line.text) for line in lines)
    runs = [place for place, line in enumerate(lines) if _RUNNER.search(line.text) and not _is_setup(line.text)]
    for place in runs:
        message = _eaten(lines, place, has_pipefail=has_pipefail, fails_fast=fails_fast)
        if message is not None:
            line = lines[place]
            yield finding(
                "vacuous/status-eaten", f"{script.file}: {message}", [at(script.file, line.number, line.text)]
            )
            return
    always = [line for line in lines if line.depth == 0 and _pays_always(line.text) and _writes(lines, line)]
    guarded = fails_fast or any(re.search(r"\b(?:exit|return|trap|exec)\b|\$\?", line.text) for line in lines)
    payments = [line for line in lines if _pays_always(line.text)]
    has_else = any(re.match(r"^else\b", line.text) for line in lines)
    pays = always[-1] if always and not guarded else payments[0] if has_else and len(payments) > 1 else None
    if pays is not None and not _is_corrected(lines, pays if pays in always else _FIRST):
        message = f"{script.file} writes a reward of 1 in every case"
        yield finding("vacuous/unconditional", message, [at(script.file, pays.number, pays.text)])


def _eaten(lines: list[_Line], place: int, *, has_pipefail: bool, fails_fast: bool) -> str | None:
    """Say how the status of the tests at ``place`` gets lost before a reward is decided by it; None if it does not."""
    line = lines[place].text
    bare = _QUOTED.sub("''", line)
    is_eaten = bool(_EATEN.search(bare))
    is_piped = bool(_PIPE.search(bare.partition("||")[0])) and not has_pipefail
    is_condition = bool(re.match(r"^(?:if|elif|while|until)\b", line))
    if is_condition:
        if re.search(r"\|\|\s*(?:true|:)\s*;?\s*(?:then|do)?$", bare):
            return "`|| true` makes the condition true whatever the tests say"
        piped_to = bare.rpartition("|")[2]
        if is_piped and re.search(r"\b(?:tee|cat|tail|head|sed|awk|tr|ts)\b", piped_to):
            return "the condition has the status of the pipe's last command, not of the tests (no pipefail)"
        return None
    if re.search(r"&&", bare) and _PAYS.search(line):
        return "the reward follows the pipe's last command, not the tests (no pipefail)" if is_piped else None
    following = lines[place + 1 :]
    status = next((number for number, other in enumerate(following) if _STATUS.search(other.text)), None)
    if status is not None and not _STATUS.search(bare) and "PIPESTATUS" not in line:
        if is_eaten:
            return "the tests' exit status is replaced before `$?` is read"
        if is_piped:
            return "`$?` is the status of the pipe's last command, not of the tests (no pipefail)"
        between = [other.text for other in following[:status] if not _CLOSES.match(other.text)]
        uses = following[status].text
        if (
            between
            and not any(_RUNNER.search(text) or "=$?" in text for text in between)
            and not _IGNORES.match(between[-1])
        ):
            return f"`$?` in `{uses}` is the status of `{between[-1]}`, not of the tests"
        return None
    pays = next((other for other in following if other.depth == 0 and _pays_always(other.text)), None)
    if (
        pays is None
        or lines[place].depth > 0
        or _STATUS.search(bare)
        or any("PIPESTATUS" in other.text for other in following)
    ):
        return None
    if not is_eaten and (fails_fast and not is_piped):
        return None
    if re.search(r"\|\|\s*(?:\{|exit\s+[1-9$]|fail|die|\w+=)|=\$\(", bare) or _is_corrected(lines, pays):
        return None
    return "a reward of 1 follows whatever the tests' exit status is"


def _pays_always(text: str) -> bool:
    """Return whether a line pays without a condition on it."""
    return bool(_PAYS.match(text)) and not re.search(r"&&|\|\|", text)


def _writes(lines: list[_Line], pays: _Line) -> bool:
    """Return whether a payment is written as it is: a variable may be set to 1 and then to something else."""
    return "=" not in pays.text.partition(">")[0].partition(" ")[0] or not any(
        re.search(r"\b(?:reward|score)=(?![\"']?1)", line.text, re.I) for line in lines
    )


def _is_corrected(lines: list[_Line], pays: _Line) -> bool:
    """Return whether another line writes a reward of 0, or of a variable, after the payment."""
    later = [line.text for line in lines if line.number > pays.number]
    return any(_CORRECTS.search(text) for text in later)


def _is_setup(text: str) -> bool:
    """Return whether a line only installs a runner, or speaks of it."""
    return bool(
        re.match(
            r"^(?:sudo\s+)?(?:pip3?|apt(?:-get)?|apk|uv\s+(?:pip|tool\s+install|init|add|venv)|python3?\s+-m\s+pip|npm\s+(?:i|install|ci)|"
            r"echo|printf|mkdir|cp|chmod|chown|source|\.|cat|which|command|export|rm|ls|readonly|local|trap)\b",
            text,
        )
    ) or bool(re.match(r"^\w+=(?!\$\()", text))


def _lines(text: str) -> list[_Line]:
    """Return the commands with the depth of blocks around each; without comments and here-documents."""
    found: list[_Line] = []
    depth, end, joined, began = 0, None, "", 0
    for number, raw in enumerate(text.split("\n"), start=1):
        if end is not None:
            if raw.strip() == end:
                end = None
            continue
        line = raw.strip()
        if number == 1 and line.startswith("#!"):
            found.append(_Line(1, line, 0))
            continue
        line = re.sub(r"(?:^|\s)#.*$", "", line) if line.count("'") % 2 == 0 and line.count('"') % 2 == 0 else line
        joined, began = (f"{joined} {line}".strip(), began or number)
        if joined.endswith("\\"):
            joined = joined[:-1].rstrip()
            continue
        line, start, joined, began = joined, began, "", 0
        if (document := re.search(r"<<-?\s*(['\"]?)(\w+)\1", line)) is not None and "<<<" not in line:
            end = document[2]
        if not line:
            continue
        if _CLOSES.match(line):
            depth = max(0, depth - 1)
        is_inner = depth or (_OPENS.match(line) and not re.match(r"^(?:if|while|until)\b", line))
        found.append(_Line(start, line, 1 if is_inner or re.match(r"^(?:else|elif)\b", line) else 0))
        if _OPENS.search(line) and not re.search(r"(?:\bfi|\bdone|\besac|\})\s*(?:[;|&>].*)?$", line):
            depth += 1
    return found


# -- Python ------------------------------------------------------------------------------------------------------------


def _read_python(tests: list[Content]) -> Iterator[Finding]:
    runs = "\n".join(file.text for file in tests if file.suffix in (".sh", ".bash", ".toml", ".ini", ".cfg"))
    if not re.search(r"\bpytest\b|\bunittest\b", runs):
        return
    modules: list[tuple[Content, ast.Module]] = []
    for file in tests:
        if file.suffix == ".py" and file.name not in ("conftest.py", "__init__.py"):
            try:
                modules.append((file, ast.parse(file.text)))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return  # the runner says so itself
    named = [pair for pair in modules if _is_run(pair[0], runs)]
    if not named:
        return
    collected = [(file, test) for file, module in named for test in _tests(module)]
    places = [at(file.file, 1) for file, _ in named]
    if not collected:
        if not any(_makes_tests(module) for _, module in named):
            names = ", ".join(file.file for file, _ in named)
            yield finding("vacuous/no-tests", f"no test is collected from {names}", places)
        return
    skipped = {file.file for file, module in named if _skips_module(module)}
    lines = [at(file.file, test.lineno, f"def {test.name}") for file, test in collected[:5]]
    if all(file.file in skipped or _is_skipped(test) for file, test in collected):
        yield finding("vacuous/tests-skipped", f"all {len(collected)} tests are skipped or expected to fail", lines)
    elif all(file.file in skipped or _is_skipped(test) or _can_not_fail(test) for file, test in collected):
        yield finding("vacuous/no-assertion", f"none of the {len(collected)} tests can fail", lines)


type _Test = ast.FunctionDef | ast.AsyncFunctionDef


def _is_run(file: Content, runs: str) -> bool:
    return file.name in runs or bool(re.fullmatch(r"test_.*\.py|.*_test\.py", file.name))


def _tests(module: ast.Module) -> Iterator[_Test]:
    """Yield the functions that pytest collects by its default names, with a class's own decorators added to them."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node
        elif isinstance(node, ast.ClassDef) and (node.name.startswith("Test") or _is_test_case(node)):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test"):
                    inner.decorator_list += node.decorator_list
                    yield inner


def _is_test_case(node: ast.ClassDef) -> bool:
    return any("Test" in ast.unparse(base) for base in node.bases)


def _makes_tests(module: ast.Module) -> bool:
    """Return whether tests may come from elsewhere: star imports, bases, assignments, doctests, a main program."""
    text = ast.unparse(module)
    return bool(
        re.search(
            r"import \*|\bimport \w*test|^test\w* = |load_tests|pytest_generate|doctest|__main__|>>> |\bassert\b.*",
            text,
            re.M,
        )
        if not re.search(r"def \w+\(", text)
        else re.search(
            r"import \*|load_tests|pytest_generate|doctest|__main__|>>> |^test\w* = |setattr\(|globals\(\)", text, re.M
        )
    )


def _is_skip(node: ast.expr) -> bool:
    """Return whether a mark or a call skips in every case, or lets a test fail without a consequence."""
    text = ast.unparse(node)
    if re.search(r"skipif|skipIf|skipUnless", text):
        return bool(re.search(r"skip[iI]f\((?:True|1)\b|skipUnless\((?:False|0)\b", text))
    if re.search(r"\bxfail\b", text):
        return "strict=True" not in text and not re.search(
            r"xfail\([^)]*condition|xfail\((?!reason|raises|run|strict|\))\w", text
        )
    return bool(re.search(r"\.skip\b|^skip\b|expectedFailure|SkipTest", text))


def _skips_module(module: ast.Module) -> bool:
    for node in module.body:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and "allow_module_level=True" in ast.unparse(node)
        ):
            return True
        if isinstance(node, ast.Raise) and node.exc is not None and "Skip" in ast.unparse(node.exc):
            return True
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            if any(map(_is_skip, marks)):
                return True
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__test__":
            return ast.unparse(node.value) == "False"
    return False


def _is_skipped(test: _Test) -> bool:
    if any(map(_is_skip, test.decorator_list)):
        return True
    for node in _body(test):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            return name in ("pytest.skip", "skip", "self.skipTest", "pytest.xfail")
        if isinstance(node, ast.Raise) and node.exc is not None:
            return "Skip" in ast.unparse(node.exc)
        if isinstance(node, ast.Return):
            return True
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Assign):
            return False
    return False


def _can_not_fail(test: _Test) -> bool:
    """Return whether nothing in a test can fail: only constants, passes and prints, or every failure is caught."""
    body = _body(test)
    if len(body) == 1 and isinstance(body[0], ast.Try):
        handlers = body[0].handlers
        catches = [
            h
            for h in handlers
            if h.type is None or ast.unparse(h.type) in ("Exception", "BaseException", "AssertionError")
        ]
        if catches and all(_is_idle(node) for h in catches for node in h.body):
            return True
    return all(map(_is_idle, body))


def _is_idle(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assert):
        return _is_true(node.test)
    if isinstance(node, ast.Expr):
        text = ast.unparse(node)
        return isinstance(node.value, ast.Constant) or bool(
            re.match(r"print\(|logging\.|self\.assertTrue\(True\)|self\.assertEqual\((\w+), \1\)$", text)
        )
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Return) and node.value is None)


def _is_true(test: ast.expr) -> bool:
    """Return whether a condition holds in every case: a constant, a tuple, `x == x`, or `… or True`."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Tuple):
        return bool(test.elts)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(map(_is_true, test.values))
    if (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq | ast.Is | ast.GtE | ast.LtE)
    ):
        return ast.dump(test.left) == ast.dump(test.comparators[0]) and not isinstance(test.left, ast.Call)
    return False


def _body(test: _Test) -> list[ast.stmt]:
    """Return a test's statements without its docstring."""
    first = test.body[0]
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return test.body[1:] if is_docstring else test.body
