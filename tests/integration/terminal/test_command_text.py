"""A tool's command reaches the shell as it stands: no completion, no history expansion, no key that edits a line."""

import asyncio
import shlex
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment

from harbor_gym.config import TerminalConfig, TerminalEnvConfig
from harbor_gym.terminal import Terminal, TerminalTurn, open_terminal
from harbor_gym.types import ActionFormat, Command
from tests.benchmarks.sandbox import started_environment
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.terminal_environments import LONG_SEC, LocalSandbox
from tests.helpers.tasks import BASE, write_task

pytestmark = pytest.mark.local


@pytest.fixture(params=["portable", "persistent"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> TerminalConfig:
    """The terminal of an episode whose policy calls a tool."""
    env = TerminalEnvConfig(
        task_dir=write_task(tmp_path / "task"),
        action_format=ActionFormat.BASH_TOOL,
        terminal=TerminalConfig(transport=request.param),
    )
    return env.session


@pytest.fixture
async def terminal(sandbox: LocalSandbox, config: TerminalConfig) -> AsyncGenerator[Terminal]:
    opened = await open_terminal(sandbox, config)
    await opened.run([])
    yield opened
    await opened.close()


async def enter(terminal: Terminal, command: str) -> TerminalTurn:
    return await terminal.run([Command(f"{command}\n", LONG_SEC)])


async def read(sandbox: BaseEnvironment, path: str) -> str:
    """Return a file's bytes as text; every byte is one character."""
    result = await sandbox.exec(f"od -An -v -tx1 {shlex.quote(path)}")
    assert result.return_code == 0, result.stderr
    return bytes.fromhex((result.stdout or "").replace("\n", " ")).decode("latin-1")


def here_document(body: str, path: str) -> str:
    return f"cat > {path} <<'EOF'\n{body}EOF"


SIGNALS = (0x03, 0x11, 0x13, 0x1A, 0x1C)
BODIES = {
    "a Makefile": "all: prog\n\ncc:\n\tgcc -o prog main.c\n\n\t@echo !! !cc done\n",
    "tabs": "\t\n\tls\t/\t\t\nls /u\t\n",
    "exclamation marks": "!\n!!\n!x !?x? !$ ^a^b\n'!!' \"!!\"\n",
    "control characters": "".join(chr(code) for code in [*range(1, 9), *range(11, 32), 127] if code not in SIGNALS)
    + "\nend\n",
    "an escape sequence": "\x1b[31mred\x1b[0m\x1b[A\x1bb\n",
    "a long line": "x" * 3000 + "\t" + "y" * 3000 + "!z\n",
    "many lines": "".join(f"\tline {number} !{number}\n" for number in range(300)),
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
async def test_a_here_document_is_written_as_it_stands(shell: str, terminal: Terminal, sandbox: LocalSandbox) -> None:
    if shell == "sh":
        await enter(terminal, "sh")
    for number, (name, body) in enumerate(BODIES.items()):
        if shell == "sh" and len(max(body.split("\n"), key=len)) > 4000:
            continue  # the kernel's line mode ends a line at 4095 bytes, for every program without a line editor
        turn = await enter(terminal, here_document(body, f"/tmp/{number}"))
        assert turn.waits in (("prompt",), ("tty_read",)), name
        assert await read(sandbox, f"/tmp/{number}") == body, name


async def test_a_shebang_in_double_quotes_is_written_and_run(terminal: Terminal, sandbox: LocalSandbox) -> None:
    turn = await enter(terminal, 'echo "#!/bin/bash" > /tmp/run.sh')
    assert turn.exit_code == 0
    assert await read(sandbox, "/tmp/run.sh") == "#!/bin/bash\n"


async def test_a_function_of_several_lines(terminal: Terminal) -> None:
    await enter(terminal, 'greet() {\n\tif true; then\n\t\techo "hello, $1!"\n\tfi\n}')
    turn = await enter(terminal, "greet world; (exit 7)")
    assert "hello, world!" in turn.text
    assert turn.exit_code == 7


async def test_a_command_reads_the_lines_behind_it(terminal: Terminal) -> None:
    turn = await enter(terminal, "read -r line\n\tof! its own")
    assert turn.exit_code == 0
    assert "[of! its own]" in (await enter(terminal, 'echo "[$line]"')).text


async def test_an_unclosed_quote_waits_for_its_end(terminal: Terminal) -> None:
    assert (await enter(terminal, "false")).exit_code == 1
    turn = await enter(terminal, "echo 'a")
    assert (turn.exit_code, turn.waits) == (None, ("tty_read",))
    turn = await enter(terminal, "\tb!'")
    assert turn.exit_code == 0


async def test_a_character_that_no_terminal_takes_as_text_is_refused(terminal: Terminal) -> None:
    for code in (0, *SIGNALS):
        turn = await enter(terminal, f"echo {chr(code)} > /tmp/never")
        assert turn.text.startswith("[nothing was typed: "), code
        assert (await enter(terminal, "[ ! -e /tmp/never ]")).exit_code == 0, code


async def test_a_keys_name_is_a_key(terminal: Terminal) -> None:
    await terminal.run([Command("cat\n", 1.0)])
    turn = await terminal.run([Command("C-c", LONG_SEC)])
    assert turn.exit_code == 130


@pytest.mark.parametrize("keys", ["exact", "literal"])
@pytest.mark.parametrize("transport", ["portable", "persistent"])
async def test_an_exit_code_is_this_commands_or_absent(keys: str, transport: str, sandbox: LocalSandbox) -> None:
    config = TerminalConfig.model_validate({"transport": transport, "keys": keys})
    terminal = await open_terminal(sandbox, config)
    await terminal.run([])
    codes = []
    for command in ("(exit 3)", "", "(exit 3)", "!nothing_of_this_name", "true", "true", ")", "# only a comment"):
        turn = await enter(terminal, command)
        codes.append(turn.exit_code)
    await terminal.close()
    recalled = 127 if keys == "literal" else None
    assert codes == [3, None, 3, recalled, 0, 0, 2, None]


ELSEWHERE = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "apptainer")]


@pytest.mark.parametrize("kind", ELSEWHERE)
async def test_a_commands_text_in_other_sandboxes(
    kind: str, config: TerminalConfig, tmp_path: Path, nothing_left: None
) -> None:
    if kind == "docker":
        await asyncio.to_thread(subprocess.run, [ROOT / ".ci" / "docker_base.sh", BASE], check=True)
    async with started_environment(kind, tmp_path / "task") as sandbox:
        terminal = await open_terminal(sandbox, config)
        await terminal.run([])
        for number, body in enumerate(BODIES.values()):
            assert (await enter(terminal, here_document(body, f"/tmp/{number}"))).waits == ("prompt",)
            assert await read(sandbox, f"/tmp/{number}") == body
        commands = ('echo "#!/bin/bash" > /tmp/run.sh', "(exit 3)", "!nothing_of_this_name", "true", ")", "# a comment")
        assert [(await enter(terminal, command)).exit_code for command in commands] == [0, 3, 127, 0, 2, None]
        assert await read(sandbox, "/tmp/run.sh") == "#!/bin/bash\n"
        await terminal.close()


async def test_keystrokes_keep_their_completion_and_history(sandbox: LocalSandbox) -> None:
    terminal = await open_terminal(sandbox, TerminalConfig())
    await terminal.run([])
    await enter(terminal, "echo one")
    assert "one two" in (await enter(terminal, "!! two")).text
    assert "/etc/hostname" in (await enter(terminal, "echo /etc/hostn\t")).text
    await terminal.close()


def test_keys_that_are_named_are_kept(tmp_path: Path) -> None:
    def keys(**settings: object) -> str | None:
        return TerminalEnvConfig.model_validate({"task_dir": tmp_path, **settings}).session.keys

    assert keys() == keys(action_format="keystrokes") == "exact"
    assert keys(action_format="bash-tool") == "literal"
    assert keys(action_format="bash-tool", terminal={"keys": "exact"}) == "exact"


async def test_no_pager_takes_the_next_command_for_keys(terminal: Terminal) -> None:
    turn = await enter(terminal, 'env | grep -c "^[A-Z_]*PAGER=cat$"; seq 200 | ${PAGER:-less}')
    assert (turn.waits, turn.text.splitlines()[1:3]) == (("prompt",), ["4", "1"])


async def test_the_images_pager_can_be_kept(sandbox: LocalSandbox, config: TerminalConfig) -> None:
    terminal = await open_terminal(sandbox, config.model_copy(update={"pager": ""}))
    assert (await enter(terminal, "env | grep -c PAGER=")).text.endswith("\n0\n$")
    await terminal.close()


async def test_a_command_is_not_typed_into_a_full_screen_program(terminal: Terminal) -> None:
    await enter(terminal, "seq 500 | less")
    turn = await enter(terminal, "rm -rf /srv/*")
    assert (turn.waits, turn.exit_code) == (("fullscreen",), None)
    assert turn.text.startswith("[nothing was typed: a full-screen program has the terminal")
    assert "\n1\n2\n" in turn.text
    # One character is a key.
    assert (await enter(terminal, "q")).waits == ("prompt",)
    assert (await enter(terminal, "echo left")).text.endswith("$ echo left\nleft\n$")


async def test_a_command_is_typed_into_a_shell_in_a_screen_that_a_killed_program_left(terminal: Terminal) -> None:
    await enter(terminal, "bash --norc")
    await enter(terminal, "sh -c 'printf \"\\033[?1049h\"; kill -9 $$'")
    assert "\nhere\n" in (await enter(terminal, "echo here")).text
