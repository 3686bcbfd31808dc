"""The culprit of a sandbox that gives no verdict: the probe's findings, by a real shell on this machine."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast, override

import pytest
from harbor.environments.base import BaseEnvironment, ExecResult

from harbor_gym.episode.grading import breakage as module
from harbor_gym.episode.grading.breakage import Grader, find_breakage, interpreter_of, sound_answer
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.host_shell import HostShell

INTERPRETER_LOST = "which runs the tests, does not run any more"
TERMINAL_LOST = "the processes of its terminal were stopped or killed"


class Shell(HostShell):
    """Runs a sandbox's commands on this machine, or answers or raises as it is told."""

    def __init__(self, answer: str | None = None, error: Exception | None = None) -> None:
        super().__init__()
        self.answer, self.error = answer, error

    @override
    async def exec(self, command: str, **settings: Any) -> ExecResult:
        if self.error is not None:
            raise self.error
        return (
            await super().exec(command, **settings)
            if self.answer is None
            else ExecResult(stdout=self.answer, return_code=0)
        )


class Watched(Shell):
    """One whose host knows whether it is there."""

    def __init__(self, *states: bool, **answers: Any) -> None:
        super().__init__(**answers)
        self.states = list(states)

    async def is_up(self) -> bool:
        return self.states.pop(0)


@pytest.fixture(autouse=True)
def python_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


async def breakage(shell: HostShell, **what: Any) -> str | None:
    return await find_breakage(cast(BaseEnvironment, shell), **what)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/bin/bash\necho\n", ["/bin/bash"]),
        ("#!/usr/bin/env -S python3 -u\n", ["/usr/bin/env", "-S", "python3", "-u"]),
        ("#! /bin/sh\n", ["/bin/sh"]),
        ("echo\n", []),
        ("", []),
    ],
)
def test_a_scripts_first_line_names_its_interpreter(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert list(interpreter_of(Path(script(tmp_path / "test.sh", text)))) == expected


def test_a_script_that_is_not_there_names_none(tmp_path: Path) -> None:
    assert list(interpreter_of(tmp_path / "test.sh")) == []


@pytest.mark.parametrize(
    "interpreter",
    [
        *(
            [],
            ["/bin/sh"],
            ["/bin/bash", "-e"],
            [sys.executable],
            ["/usr/bin/env", "bash"],
            ["/usr/bin/env", "python3"],
        ),
        ["/usr/bin/env", "-S", "A=1", "python3", "-u"],
    ],
)
async def test_a_sandbox_in_order_was_broken_by_nobody(
    interpreter: Sequence[str], sleeper: subprocess.Popen[bytes]
) -> None:
    shell = Shell()
    assert await breakage(shell, interpreter=interpreter, terminal=[str(os.getpid()), str(sleeper.pid)]) is None
    (settings,) = shell.asked
    assert (settings["cwd"], settings["user"]) == ("/", "root"), "wherever the policy left its directory"


async def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    for name, text in (("bash", "#!/bin/false\n"), ("python3", "#!/bin/true\n"), ("dash", "#!/nowhere\n")):
        found = await breakage(Shell(), interpreter=[script(tmp_path / name, text)])
        assert found == f"{tmp_path / name}, {INTERPRETER_LOST}"
    broken = ["/usr/bin/env", "-S", str(tmp_path / "python3"), "-u"]
    assert INTERPRETER_LOST in (await breakage(Shell(), interpreter=broken) or "")
    gone = ["/usr/bin/env", str(tmp_path / "sh")]
    assert await breakage(Shell(), interpreter=gone) == f"/usr/bin/env {tmp_path / 'sh'}, {INTERPRETER_LOST}"


async def test_an_interpreter_of_no_known_kind_has_to_be_there(tmp_path: Path) -> None:
    ruby = script(tmp_path / "ruby", "")
    assert await breakage(Shell(), interpreter=[ruby]) is None
    script(tmp_path / "ruby", "", mode=0o644)
    assert INTERPRETER_LOST in (await breakage(Shell(), interpreter=[ruby]) or "")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("interpreter", [[], ["/bin/sh"]])
async def test_a_terminal_that_was_stopped_or_killed_is_the_policys_doing(
    number: signal.Signals, interpreter: list[str], sleeper: subprocess.Popen[bytes]
) -> None:
    terminal = [str(os.getpid()), str(sleeper.pid)]
    sleeper.send_signal(number)
    async with asyncio.timeout(PATIENCE_SEC):
        while (found := await breakage(Shell(), interpreter=interpreter, terminal=terminal)) is None:  # noqa: ASYNC110 - a signal that takes effect sends no event
            await asyncio.sleep(0.01)
    assert found == TERMINAL_LOST
    sleeper.kill()
    sleeper.wait()
    assert await breakage(Shell(), interpreter=interpreter, terminal=terminal) == TERMINAL_LOST, "gone, not a zombie"


async def test_a_shell_that_answers_something_else_was_replaced() -> None:
    found = await breakage(Watched(True, True, answer=f"{'x' * 300}\n"))
    assert found == f"its shell answers '{'x' * 100}' instead of the expected text"
    assert await breakage(Watched(True, True, answer="")) == "its shell answers '' instead of the expected text"
    assert await breakage(Watched(True, False, answer="x")) is None, "it went meanwhile"
    assert await breakage(Shell(answer="x")) is None, "nobody knows whether it is there"


async def test_a_sandbox_that_runs_no_command_any_more() -> None:
    error = RuntimeError("exec failed")
    assert await breakage(Watched(True, True, error=error)) == "no command runs in it any more (exec failed)"
    assert await breakage(Watched(True, False, error=error)) is None
    assert await breakage(Shell(error=error)) is None


async def test_a_sandbox_that_is_gone_is_not_asked() -> None:
    shell = Watched(False)
    assert await breakage(shell) is None
    assert shell.asked == []


async def test_nonsense_of_the_terminal_counts_where_all_else_is_well() -> None:
    assert await breakage(Shell(), answers_nonsense=True) == "its terminal's answers can't be read"
    assert await breakage(Watched(False), answers_nonsense=True) is None


async def test_the_answer_for_sandboxes_without_a_shell_is_the_shells() -> None:
    class Compared(HostShell):
        @override
        async def exec(self, command: str, **settings: Any) -> ExecResult:
            by_shell = await super().exec(command, **settings)
            assert sound_answer(command) == by_shell.stdout
            return by_shell

    for interpreter in ([], ["/bin/sh"]):
        assert await breakage(Compared(), interpreter=interpreter) is None
    assert sound_answer("echo one") is None


class Crowded(Shell):
    """One that counts its processes by itself."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    async def clean_up(self, work: str, arguments: dict[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        assert work == "baseline"
        return {"processes": [f"{pid}:0" for pid in range(self.count)], "ipc": [], "oom_kills": None}


async def test_a_terminal_without_an_answer_in_time_beside_a_crowd_was_broken() -> None:
    assert await breakage(Crowded(1000)) is None
    assert await breakage(Crowded(20), has_timed_out=True) is None, "the machine may be busy"
    found = await breakage(Crowded(1000), has_timed_out=True)
    assert found == "its terminal did not answer in time beside 1000 processes"


async def test_all_commands_of_a_probe_have_one_time_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    class Slow(Shell):
        @override
        async def exec(self, command: str, **settings: Any) -> ExecResult:
            nonlocal now
            now += 3.5
            return await super().exec(command, **settings)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    for limit_sec, expected in ((5.0, [5, 2]), (3.0, [3, 1])):
        shell = Slow()
        assert await breakage(shell, grader=Grader(None, PurePosixPath("/tmp")), limit_sec=limit_sec) is None
        assert [settings["timeout_sec"] for settings in shell.asked] == expected
