"""The measured steps, as a policy would take them, and the expected screen after each.

Every implementation gets the same keystrokes and the same durations. The durations follow Terminus-2's prompt: 0.1 s
for immediate commands, 1.0 s for others. Source: Harbor's terminus-json-plain template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harbor_gym.types import Command
from tests.benchmarks.sandbox import LISTINGS, PROMPT

_AT_ONCE_SEC = 0.1
_COMMAND_SEC = 1.0
SIX = "six 1.0 s steps"
LIST = "ls"

_MIN_TILDES = 10
"""An empty buffer in vi shows a tilde in each row after the first; a screen with fewer is not vi's."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measured step, usually one turn of the policy."""

    row: str | None
    """Name in the report; None for a preparation, which is neither timed nor judged."""

    turns: tuple[tuple[Command, ...], ...]
    """One batch of commands per turn."""

    is_right: Callable[[Sequence[str]], bool] = lambda _: True
    """Returns whether the observations, one per turn, are as expected."""


type Scenario = tuple[Step, ...]
"""Successive steps in one session, from the shell's prompt back to it."""


def make_scenarios(repetition: int) -> list[Scenario]:
    """Return every scenario. Each repetition expects different text, so that an old screen is never right."""
    n = repetition
    return [
        _list(n),
        _sleep(n),
        _edit(n),
        _python(n),
        _many_lines(n),
        _interrupt(),
        _read_secretly(n),
        _batch(n),
        _six(n),
    ]


def _list(n: int) -> Scenario:
    i = n % LISTINGS
    return (
        _step(
            LIST,
            f"ls /srv/bench/{i}\n",
            _AT_ONCE_SEC,
            lambda text: _ends_at_prompt(text) and all(f"{name}-{i}.txt" in text for name in ("alpha", "beta")),
        ),
    )


def _sleep(n: int) -> Scenario:
    keys = f"sleep 0.3; echo slept-$(({n} + 1))\n"
    return (_step("sleep 0.3", keys, _COMMAND_SEC, lambda text: _shows(text, f"slept-{n + 1}")),)


def _edit(n: int) -> Scenario:
    word = f"hello-{n}"
    quit_commands = (Command("Escape", _AT_ONCE_SEC), Command(":wq\n", _AT_ONCE_SEC))
    return (
        _step("vim open", f"vi /tmp/note-$$-{n}\n", _COMMAND_SEC, _is_editor),
        _step("vim insert", f"i{word}", _AT_ONCE_SEC, lambda text: _is_editor(text) and word in _lines(text)),
        Step("vim quit", (quit_commands,), lambda texts: _ends_at_prompt(texts[0]) and "~" not in _lines(texts[0])),
    )


def _python(n: int) -> Scenario:
    return (
        _step("python start", "python3\n", _COMMAND_SEC, lambda text: _lines(text)[-1] == ">>>"),
        _step(
            "python eval",
            f"print({n} * 7 + 1000)\n",
            _AT_ONCE_SEC,
            lambda text: _shows(text, str(n * 7 + 1000), prompt=">>>"),
        ),
        _step(None, "exit()\n", _COMMAND_SEC),
    )


def _many_lines(n: int) -> Scenario:
    keys = f"seq -f {n}-%.0f 10000\n"
    return (
        _step(
            "10 000 lines",
            keys,
            _COMMAND_SEC,
            lambda text: all(_shows(text, f"{n}-{line}") for line in (1, 2, 3, 9999, 10000)),
        ),
    )


def _interrupt() -> Scenario:
    return (
        _step(None, "sleep 1000\n", _AT_ONCE_SEC),
        _step("C-c", "C-c", _AT_ONCE_SEC, lambda text: "^C" in text and _ends_at_prompt(text)),
    )


def _read_secretly(n: int) -> Scenario:
    secret = f"{'s' * (n % 20 + 1)}ecret"
    keys = 'read -rsp "Password: " P; echo "/${#P}/"\n'
    return (
        _step("read -s", keys, _AT_ONCE_SEC, lambda text: _lines(text)[-1] == "Password:"),
        _step(
            "read -s reply",
            f"{secret}\n",
            _AT_ONCE_SEC,
            lambda text: f"/{len(secret)}/" in text and secret not in text and _ends_at_prompt(text),
        ),
    )


def _batch(n: int) -> Scenario:
    """Two commands, of which the first takes longer than its duration."""
    batch = (Command(f"sleep 0.4; X={n}\n", _AT_ONCE_SEC), Command("echo X=$((X + 1))\n", _AT_ONCE_SEC))
    return (Step("batch of two", (batch,), lambda texts: _shows(texts[0], f"X={n + 1}")),)


def _six(n: int) -> Scenario:
    turns = tuple((Command(f"echo six-$(({n} * 6 + {k}))\n", _COMMAND_SEC),) for k in range(6))
    return (Step(SIX, turns, lambda texts: all(_shows(text, f"six-{n * 6 + k}") for k, text in enumerate(texts))),)


def _step(row: str | None, keystrokes: str, duration_sec: float, is_right: Callable[[str], bool] = bool) -> Step:
    return Step(row, ((Command(keystrokes, duration_sec),),), lambda texts: is_right(texts[0]))


def _lines(text: str) -> list[str]:
    """Return the lines, right-trimmed, without blank ones at the end; never empty."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _shows(text: str, line: str, *, prompt: str = PROMPT) -> bool:
    lines = _lines(text)
    return line in lines and lines[-1] == prompt


def _ends_at_prompt(text: str) -> bool:
    return _lines(text)[-1] == PROMPT


def _is_editor(text: str) -> bool:
    return _lines(text).count("~") >= _MIN_TILDES


ROWS = tuple(step.row for scenario in make_scenarios(0) for step in scenario if step.row is not None)
"""Every row's name, in order."""
