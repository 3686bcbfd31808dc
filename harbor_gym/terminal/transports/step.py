"""One step for a transport: the keystrokes, the waiting times, and the nonce of its answer."""

import base64
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal.screen.capture import Capture
from harbor_gym.terminal.screen.keys import MAX_INLINE_BYTES, MAX_LINE_BYTES, Keys
from harbor_gym.types import Command

LONG_PAYLOAD_BYTES = 100_000
"""Linux accepts at most 128 KiB in one argument; longer keystrokes are sent ahead in pieces."""


@dataclass(frozen=True, slots=True)
class TypedInput:
    """One command for the step script."""

    wait: str
    """Milliseconds, ``<busy>/<idle>`` or ``=<exactly>``."""

    kind: str
    """``none``, ``keys``, ``hex``, ``text``, ``base64`` or ``file``; with ``-tool`` for the text of a tool's command,
    and ``-long`` for a line that a terminal in line mode cuts."""

    payload: str
    """Free of white space and of characters that a shell interprets."""

    @property
    def wait_sec(self) -> float:
        """The longest wait, in seconds."""
        return int(self.wait.partition("/")[0].lstrip("=")) / 1000


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the step script."""

    nonce: str
    """Begins and ends the answer; no program in the sandbox can know it beforehand."""

    capture_bytes: int
    """Half of the answer's limit, in bytes."""

    first_number: int
    """Number of the first command. All commands of a session are numbered, so that none is typed twice."""

    inputs: tuple[TypedInput, ...]

    @property
    def words(self) -> list[str]:
        """The script's arguments."""
        words = [self.nonce, str(self.capture_bytes), str(self.first_number)]
        for typed_input in self.inputs:
            words += [typed_input.wait, typed_input.kind, typed_input.payload]
        return words

    @property
    def wait_sec(self) -> float:
        """The longest sum of all waits, in seconds."""
        return sum(typed_input.wait_sec for typed_input in self.inputs)

    def without_inputs(self) -> "Step":
        """Return a step that only reads the screen."""
        return replace(self, nonce=_nonce(), inputs=())

    def with_long_payloads_in_files(self) -> "tuple[Step, dict[str, str]]":
        """Return the step with payloads too long for a command line replaced by files, and the files' content."""
        files: dict[str, str] = {}
        inputs: list[TypedInput] = []
        room = LONG_PAYLOAD_BYTES
        for typed_input in self.inputs:
            if len(typed_input.payload) > room:
                # The size in the name lets the script check that the whole file has arrived: the disk may be full.
                name = f"keys-{secrets.token_hex(4)}.{len(typed_input.payload)}"
                files[name] = typed_input.payload
                typed_input = replace(typed_input, kind=typed_input.kind.replace("base64", "file"), payload=name)
            room -= len(typed_input.payload)
            inputs.append(typed_input)
        return replace(self, inputs=tuple(inputs)), files


class Transport(Protocol):
    """A transport of steps to the sandbox."""

    name: str
    """The transport of the latest step: ``portable`` or ``persistent``."""

    async def run_step(self, step: Step) -> Capture:
        """Run ``step``; no keystroke of it is typed twice, even after a failure.

        Raises:
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The sandbox did not answer.
        """
        ...

    async def close_channel(self) -> None:
        """End what serves steps in the sandbox, if anything runs there between two; the next step starts it again."""
        ...

    async def finish(self, script: str, *arguments: object) -> str:
        """Run one of the sandbox's scripts in place of further steps, then :meth:`close`; return its output.

        Raises:
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The sandbox did not answer.
        """
        ...

    async def close(self) -> None:
        """Release this machine's resources. Idempotent; the session in the sandbox goes on."""
        ...


def make_step(commands: Sequence[Command], keys: Sequence[Keys], *, first_number: int, config: TerminalConfig) -> Step:
    """Return one turn's commands as a step."""
    inputs = tuple(
        TypedInput(_wait(command.duration_sec, config), *_encode(typed, is_tool=config.keys == "literal"))
        for command, typed in zip(commands, keys, strict=True)
    )
    return Step(_nonce(), _capture_bytes(config), first_number, inputs)


def max_answer_bytes(config: TerminalConfig) -> int:
    """Return an upper bound on the answer to one step, in bytes."""
    return 4 * _capture_bytes(config) + 10_000


def _capture_bytes(config: TerminalConfig) -> int:
    # Room for the ends of the text, and for a screen of known lines at four bytes a cell.
    return 2 * config.max_observation_bytes + 4 * config.rows * config.columns


def _nonce() -> str:
    return f"@{secrets.token_hex(8)}"


def _wait(duration_sec: float, config: TerminalConfig) -> str:
    given = 1.0 if math.isnan(duration_sec) else min(max(duration_sec, 0.0), config.max_wait_sec)
    if config.wait == "exact":
        return f"={round(given * 1000)}"
    busy = min(max(given, config.min_wait_sec), config.max_wait_sec)
    return f"{round(busy * 1000)}/{round(given * 1000)}"


def _encode(keys: Keys, *, is_tool: bool) -> tuple[str, str]:
    if keys.is_empty:
        return "none", "-"
    if keys.name is not None:
        return "keys", keys.name
    if keys.text is not None:
        return "text", keys.text.encode().hex(",")
    suffix = "-tool" * is_tool + "-long" * (keys.longest_line > MAX_LINE_BYTES)
    if len(keys.data) <= MAX_INLINE_BYTES:
        return f"hex{suffix}", keys.data.hex(",")
    return f"base64{suffix}", base64.b64encode(keys.data).decode()
