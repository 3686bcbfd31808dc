"""No wait ends early: programs that look idle for a moment, many times over and all at once."""

import asyncio
import base64
import os
import textwrap
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import open_terminal
from harbor_gym.types import Command
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.terminal_environments import LONG_SEC, LocalSandbox, start_local

pytestmark = pytest.mark.local

_ROUNDS = int(os.environ.get("HARBOR_GYM_SETTLING_ROUNDS", "6"))
_SCRIPTS = {
    "late.sh": """
        echo starting
        sleep 0.08
        read -rp 'name? ' name
        sleep 0.08
        echo "hello $name"
    """,
    # Waits for the terminal and for another process, as ssh does.
    "both.py": """
        import os, select, subprocess, tty
        tty.setcbreak(0)
        child = subprocess.Popen(["sh", "-c", "sleep 0.3; echo answer"], stdout=subprocess.PIPE)
        ready, _, _ = select.select([0, child.stdout], [], [])
        os.system("stty sane")
        print(child.stdout.read().decode().strip())
    """,
    "epoll.py": """
        import os, select, socket, time, tty
        tty.setcbreak(0)
        ours, theirs = socket.socketpair()
        if not os.fork():
            os.setpgid(0, 0)
            time.sleep(0.4)
            theirs.send(b"answer")
            os._exit(0)
        poll = select.epoll()
        poll.register(0, select.EPOLLIN)
        poll.register(ours, select.EPOLLIN)
        poll.poll()
        os.system("stty sane")
        print(ours.recv(10).decode())
    """,
    # Looks for input between two pieces of its work.
    "looks.py": """
        import select, time
        for _ in range(10):
            select.select([0], [], [], 0.03)
            time.sleep(0.001)
        print("answer")
    """,
    "timed.sh": """
        stty -icanon -echo min 0 time 1
        for i in 1 2 3; do head -c 1; done
        stty sane
        echo answer
    """,
    "threads.py": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.07), print("answer"))).start()
        input()
    """,
}

type Turns = list[tuple[str, str, str]]

_STARTS: dict[str, Turns] = {
    "an interpreter": [
        ("python3 -q\n", "tty_read", "$ python3 -q\n>>>"),
        ("1 + 1\n", "tty_read", ">>> 1 + 1\n2\n>>>"),
        (
            "import time; time.sleep(0.05); print(3)\n",
            "tty_read",
            ">>> import time; time.sleep(0.05); print(3)\n3\n>>>",
        ),
        ("exit()\n", "prompt", ">>> exit()\n$"),
    ],
    "a question after a pause": [
        ("sleep 0.3; read -rp 'go? ' X\n", "tty_read", "$ sleep 0.3; read -rp 'go? ' X\ngo?"),
        ("yes\n", "prompt", "go? yes\n$"),
    ],
    "a secret": [
        ("read -rsp 'Password: ' X; echo\n", "tty_read", "$ read -rsp 'Password: ' X; echo\nPassword:"),
        ("secret\n", "prompt", "Password:\n$"),
    ],
    "a question after output and a pause": [
        ("bash late.sh\n", "tty_read", "$ bash late.sh\nstarting\nname?"),
        ("Ada\n", "prompt", "name? Ada\nhello Ada\n$"),
    ],
    "another shell": [
        ("sh\n", "tty_read", "$ sh\n#"),
        ("sleep 0.1; echo slept\n", "tty_read", "# sleep 0.1; echo slept\nslept\n#"),
        ("exit\n", "prompt", "# exit\n$"),
    ],
    "another process's answer": [("python3 both.py\n", "prompt", "$ python3 both.py\nanswer\n$")],
    "a socket's answer": [("python3 epoll.py\n", "prompt", "$ python3 epoll.py\nanswer\n$")],
    "a program that looks for input while it works": [
        ("python3 looks.py\n", "prompt", "$ python3 looks.py\nanswer\n$")
    ],
    "a read that ends by itself": [("bash timed.sh\n", "prompt", "$ bash timed.sh\nanswer\n$")],
    "a thread that goes on": [
        ("python3 threads.py\n", "tty_read", "$ python3 threads.py\nanswer"),
        ("\n", "prompt", "\n$"),
    ],
}


@pytest.fixture
async def sandbox(tmp_path: Path, nothing_left: None) -> AsyncGenerator[LocalSandbox]:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    for name, text in _SCRIPTS.items():
        content = base64.b64encode(textwrap.dedent(text).encode()).decode()
        await sandbox.exec(f"echo {content} | base64 -d >/srv/{name}")
    yield sandbox
    await sandbox.stop(delete=True)


@pytest.mark.parametrize("transport", ["portable", "persistent"])
async def test_what_looks_idle_for_a_moment_is_waited_for(sandbox: LocalSandbox, transport: str) -> None:
    wrong: list[str] = []
    async with asyncio.TaskGroup() as group:
        for name, turns in _STARTS.items():
            group.create_task(_repeat(sandbox, transport, name, turns, wrong))
    assert not wrong, "\n".join(wrong)


async def _repeat(sandbox: LocalSandbox, transport: str, name: str, turns: Turns, wrong: list[str]) -> None:
    terminal = await open_terminal(sandbox, TerminalConfig.model_validate({"transport": transport}))
    await terminal.run([])
    for index in range(_ROUNDS):
        for keystrokes, wait, text in turns:
            turn = await terminal.run([Command(keystrokes, LONG_SEC)])
            shown = turn.text.removeprefix("[waiting for input]\n")
            if (turn.waits, shown) != ((wait,), text):
                wrong.append(f"{name}, round {index}, {keystrokes!r}: {turn.waits} {turn.text!r}")
                return
    await terminal.close()
