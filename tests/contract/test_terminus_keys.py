"""Terminus-2's keystroke semantics: a program receives the same from Harbor's own session and from ours."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from harbor.environments.base import ExecResult
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harbor_gym.terminal.screen.terminus_keys import HARBOR_SESSION, as_one_argument, is_pasted
from tests.helpers.engines import require_engine
from tests.helpers.patience import PATIENCE_SEC

END = b"\x1d\x1c\x1d"
"""The end of every message to the readers; typed as raw bytes, and in no generated text."""


_READER = """\
import os, sys, tty
tty.setraw(0)
with open(sys.argv[1], "wb", buffering=0) as log:
    log.write(b"ready")
    while data := os.read(0, 65536):
        log.write(data)
"""


class Host:
    """This machine as the environment that Harbor's session runs its commands in."""

    session_id = "host"

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables

    async def exec(self, command: str, **_: object) -> ExecResult:
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", command], env=self._variables, capture_output=True, text=True, check=False
        )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)


class Panes:
    """A tmux server with one pane for Harbor and one for us, each with a program that writes down its input."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.variables = {**os.environ, "TMUX_TMPDIR": str(directory)}
        self.variables.pop("TMUX", None)
        self._positions: dict[str, int] = {}
        self.harbor = load_session_class()(HARBOR_SESSION, cast("Any", Host(self.variables)), directory, None, None)
        for name in (HARBOR_SESSION, "ours"):
            reader = shlex.join([sys.executable, "-c", _READER, str(directory / name)])
            self.tmux(["-f", "/dev/null", "new-session", "-d", "-s", name, "-x", "160", "-y", "40", reader])
            self._positions[name] = len(b"ready")
            self._await(name, b"ready", 0)

    @property
    def version(self) -> tuple[int, ...]:
        """The tmux of this machine."""
        output = subprocess.check_output(["tmux", "-V"], text=True)
        return tuple(map(int, re.findall(r"\d+", output)))

    def received_from_harbor(self, keystrokes: str) -> bytes:
        asyncio.run(self.harbor.send_keys(keystrokes, block=False, min_timeout_sec=0.0))
        return self._received(HARBOR_SESSION)

    def received_from_us(self, keystrokes: str) -> bytes:
        if is_pasted(keystrokes):
            self.tmux(["load-buffer", "-"], keystrokes.encode())
            self.tmux(["paste-buffer", "-d", "-t", "ours"])
        else:
            self.tmux(["send-keys", "-t", "ours", "--", keystrokes])
        return self._received("ours")

    def tmux(self, arguments: Sequence[str], data: bytes = b"") -> None:
        done = subprocess.run(
            ["tmux", *arguments], env=self.variables, input=data, capture_output=True, check=False, timeout=PATIENCE_SEC
        )
        assert done.returncode == 0, f"tmux {arguments}: {done.stderr!r}"

    def _received(self, name: str) -> bytes:
        self.tmux(["send-keys", "-t", name, "-H", *(f"{byte:x}" for byte in END)])
        start = self._positions[name]
        end = self._await(name, END, start)
        self._positions[name] = end + len(END)
        return (self.directory / name).read_bytes()[start:end]

    def _await(self, name: str, mark: bytes, start: int) -> int:
        file = self.directory / name
        deadline = time.monotonic() + PATIENCE_SEC
        while not file.exists() or (found := file.read_bytes().find(mark, start)) < 0:
            assert time.monotonic() < deadline, f"the program in pane {name} never received {mark!r}"
            time.sleep(0.002)
        return found


def load_session_class() -> Any:
    """Import Harbor's session; its package imports litellm, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from harbor.agents.terminus_2.tmux_session import TmuxSession
    return TmuxSession


@pytest.fixture(scope="module")
def panes() -> Iterator[Panes]:
    require_engine("local")
    # A socket's path has 107 bytes at most, and pytest's own directories are longer.
    directory = Path("/tmp", f"keys-{uuid4().hex[:8]}")
    directory.mkdir(mode=0o700)
    made = None
    try:
        made = Panes(directory)
        yield made
    finally:
        subprocess.run(
            ["tmux", "kill-server"], env={**os.environ, "TMUX_TMPDIR": str(directory)}, capture_output=True, check=False
        )
        subprocess.run(["rm", "-rf", str(directory)], check=True)


TABLE: list[tuple[str, bytes]] = [
    ("ls\n", b"ls\n"),
    ("ls\r", b"ls\r"),
    ("ls\r\n", b"ls\r\n"),
    ("C-c", b"\x03"),
    ("C-c\n", b"C-c\n"),
    (" C-c", b" C-c"),
    ("C-C", b"\x03"),
    ("^C", b"\x03"),
    ("C-d", b"\x04"),
    ("C-Space", b"\0"),
    ("Enter", b"\r"),
    ("KPEnter", b"\n"),
    ("Escape", b"\x1b"),
    ("Up", b"\x1b[A"),
    ("up", b"\x1b[A"),
    ("F5", b"\x1b[15~"),
    ("M-x", b"\x1bx"),
    ("M-é", "\x1bé".encode()),
    ("C-M-x", b"\x1b\x18"),
    ("BSpace", b"\x7f"),
    ("0x41", b"A"),
    ("0x110000", b"0x110000"),
    ("Any", b"Any"),
    ("", b""),
    (";", b""),
    ("ls;", b"ls"),
    ("ls;;", b"ls;"),
    ("ls\\;", b"ls;"),
    ("ls\\\\;", b"ls\\;"),
    ("C-c;", b"\x03"),
    ("a;b\n", b"a;b\n"),
    ("a;\n", b"a;\n"),
    ("find . -exec ls {} \\;", b"find . -exec ls {} ;"),
    ("-l", b"-l"),
    ("--", b"--"),
    ("-H 41", b"-H 41"),
    ("#{pid}", b"#{pid}"),
    ("$HOME `id` \\n '\"", b"$HOME `id` \\n '\""),
    ("\t\x03\x7f\x1b[A", b"\t\x03\x7f\x1b[A"),
    ("é漢😀\n", "é漢😀\n".encode()),
    ("x" * 15_000, b"x" * 15_000),
    ("x\n" * 8_000, b"x\r" * 8_000),
    ("x\n" * 8_000 + ";", b"x\r" * 8_000 + b";"),
    ("'" * 3_000, b"'" * 3_000),
    ("'" * 4_000, b"'" * 4_000),
]


@pytest.mark.local
@pytest.mark.parametrize(("keystrokes", "expected"), TABLE, ids=[repr(keys[:20]) for keys, _ in TABLE])
def test_a_program_receives_the_same(panes: Panes, keystrokes: str, expected: bytes) -> None:
    if keystrokes == "0x110000" and panes.version >= (3, 4):
        expected = b"\xf4\x90\x80\x80"  # that tmux knows no end of Unicode
    assert panes.received_from_harbor(keystrokes) == expected
    assert panes.received_from_us(keystrokes) == expected


_NAMES = st.sampled_from(
    ["C-", "M-", "S-", "^", "Up", "Enter", "F1", "0x", ";", "\\", "\\;", "-", "--", "\n", "'", '"', "a"]
)
_TYPED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x1c\x1d"), max_size=60)


@pytest.mark.local
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_NAMES, max_size=6).map("".join) | _TYPED | st.tuples(_TYPED, st.sampled_from([";", "\\;"])).map("".join)
)
@example("\x1e;")
def test_a_program_receives_the_same_whatever_is_typed(panes: Panes, keystrokes: str) -> None:
    assert panes.received_from_us(keystrokes) == panes.received_from_harbor(keystrokes)


@pytest.mark.local
@pytest.mark.parametrize(
    "keystrokes", [keys for keys, _ in TABLE if not is_pasted(keys)], ids=lambda keys: repr(keys[:20])
)
def test_tmuxs_own_language_means_the_same(panes: Panes, keystrokes: str) -> None:
    """A file of commands stands for any channel that quotes its arguments and splits no command line."""
    argument = as_one_argument(keystrokes)
    if argument is not None:
        quoted = "".join(f"\\{byte:03o}" for byte in argument.encode())
        source = panes.directory / "commands"
        source.write_text(f'send-keys -t ours -- "{quoted}"\n')
        panes.tmux(["source-file", str(source)])
    assert panes.received_from_us("") == panes.received_from_harbor(keystrokes)


# --- Harbor's numbers -------------------------------------------------------------------------------------------------


def test_the_limit_is_harbors() -> None:
    session = load_session_class()(HARBOR_SESSION, cast("Any", Host({})), Path(), None, None)
    for text in ("x" * 15_900, "'" * 3_170, "é" * 7_950):
        for length in range(100):
            keystrokes = text + text[0] * length
            assert is_pasted(keystrokes) is session._key_requires_paste(keystrokes)


def test_the_session_is_called_what_harbor_calls_it() -> None:
    from harbor.models.agent.name import AgentName

    assert AgentName.TERMINUS_2.value == HARBOR_SESSION
