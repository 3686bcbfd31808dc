"""The step script's verdicts on the kernel's view: each one, from fake process trees."""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.terminal.scripts import read_script
from tests.helpers.proc_trees import TTY, Process, Thread, write_tree

# System calls of x86_64, as the script is told that it runs there.
READ, WRITE, SELECT, POLL, EPOLL, WAIT, FUTEX, SIGWAIT, SLEEP, PSELECT = 0, 1, 23, 7, 232, 61, 202, 128, 230, 270
FOREVER = "0xffffffff"
SHELL, LEADER = 10, 20

_MODES = {
    "cooked": "speed 38400; min = 1; time = 0;\nicanon echo \n",
    "raw": "speed 38400; min = 1; time = 0;\n-icanon -echo \n",
    "secret": "speed 38400; min = 1; time = 0;\nisig icanon -echo echoe\n",
}
_HARNESS = """
tty=$ROOT/tty proc=$ROOT/proc pts=$ROOT/pts shell=10 server=5 needs_run=1 keys_end_line=1 kind=r mark=10:7: typed=10:6:
modes_now=$MODES now=100000 started=$((now - SINCE)) is_full=$FULL
stty() { printf %s "$modes_now"; }
read_clock() { :; }
read_screen() { is_dead=0 is_full=$FULL screen="0 $FULL ${#TEXT} 0 0 $CURSOR"$'\\n'"$TEXT"; }
read_mark() { :; }
await_news() { :; }
eval "runtimes=($BEFORE)"
screen_before=${PROMPT:+before} prompt_before=$PROMPT statement_before=$STATEMENT
"""
_EXAMINE = """
if examine "$HOW"; then echo -n waits; else echo -n works; fi
echo " $patience${is_mixed:+ mixed}${is_hidden:+ hidden}${is_relayed:+ relayed}${is_tended:+ tended}"
"""
_LOOK = """
due=$DUE
[ -z "$LOOKED" ] || { examine thorough; last_evidence=$evidence evidence_since=$((now - IDLE)); }
find_foreground; sum_runtimes; read_screen
last_screen=$screen last_spent=$spent spent_then=$spent polls=$POLLS raw_looks=2
quiet_since=$((now - QUIET)) idle_since=$((now - IDLE)) why=''
look
echo "${why:-on}"
"""
_SETTLE = """
has_settled && echo "$why" || echo on
"""
_PROMPT = """
read_mark() { mark=$MARK kind=$KIND; }
at_prompt && echo "$why" || echo "on${news:+ news}"
"""
_FIRST_PROMPT = """
is_dead=0 kind='' looks=0
read_clock() { now=$((now + 10)); }
shell_lives() { ((now < ENDS)); }
has_settled() { looks=$((looks + 1)); [ "$looks" != "$WORKS" ]; }
read_mark() { [ "$looks" -lt "$PROMPT" ] || kind=p; }
await_first_prompt && echo -n 'open ' || echo -n 'ended '
echo "$looks $kind"
"""


def ask(root: Path, script: str, processes: Sequence[Process], **settings: object) -> str:
    """Return the output of a piece of the script in a fake tree."""
    write_tree(root, processes)
    given: dict[str, object] = {
        "ROOT": root,
        "MODES": _MODES["cooked"],
        "FULL": 0,
        "TEXT": "text",
        "PROMPT": "",
        "STATEMENT": "",
        "BEFORE": "",
    }
    given |= {
        "HOW": "thorough",
        "POLLS": 0,
        "QUIET": 400,
        "IDLE": 400,
        "SINCE": 400,
        "DUE": "",
        "CURSOR": 1,
        **settings,
    }
    variables = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in given.items())
    text = f"HOSTTYPE=x86_64\nset -- load\n{read_script('step')}\n{variables}{_HARNESS}{script}"
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def shell(*, foreground: int = LEADER, call: Sequence[int | str] = (WAIT, 0xFFFFFFFF), state: str = "S") -> Process:
    """Return the pane's shell, which waits for a child."""
    return Process(SHELL, 5, Thread(call, state), terminal_group=foreground, name="bash")


def program(*call: int | str, pid: int = LEADER, parent: int = SHELL, **more: object) -> Process:
    """Return a process of the foreground's group, in a system call."""
    given: dict[str, object] = {"group": LEADER, "terminal_group": LEADER, **more}
    return Process(pid, parent, Thread(call), **given)  # type: ignore[arg-type]


SERVER = Process(5, 1, Thread((EPOLL, 3, 0, 0, FOREVER)), name="tmux: server", fds={})


@dataclass(frozen=True)
class Row:
    """A tree, and the script's findings there."""

    name: str
    tree: Sequence[Process]
    examined: str
    looked: str = "on"
    modes: str = "cooked"
    full: int = 0
    polls: int = 0
    before: str = ""
    quiet: int = 400
    idle: int = 400
    text: str = "text"
    prompt: str = ""
    """The text before the cursor when the keys were typed."""

    statement: str = ""
    """The line that the statement began on that the keys went on with."""

    since: int = 400
    """Milliseconds since the keys."""

    cursor: int = 1
    """Whether the cursor is shown."""


_TWO_FDS = {0x1000: [0b1001]}
"""A select mask of the descriptors 0 and 3."""

UNSEEN = Process(LEADER, SHELL, Thread(), LEADER, LEADER, fds={})
"""A process of which the kernel reports nothing, as of apt after it has changed its user."""

WITHIN: dict[str, Any] = {"terminal_group": 21, "terminal": 34817, "fds": {0: "pts/1"}}
STRAY: dict[str, Any] = {"terminal_group": -1, "terminal": 0, "fds": {0: "pts/1"}}
"""A process in another terminal, and one that has it only for its input."""

NODE = program(
    EPOLL,
    4,
    0,
    8,
    6000,
    fds={0: TTY, 4: "e", 5: "n"},
    fdinfo={4: "tfd: 0\ntfd: 5\n", 5: "eventfd-count: 0\n"},
)
"""It reads, with the timer that V8 has after some work."""

ROWS = (
    Row("reads the terminal", [shell(), program(READ, 0)], "waits forever", "tty_read"),
    Row("reads, not quiet for long", [shell(), program(READ, 0)], "waits forever", quiet=80),
    Row("reads, was busy a moment ago", [shell(), program(READ, 0)], "waits forever", idle=50),
    Row("runs", [shell(), Process(LEADER, SHELL, Thread((READ, 0), "R"), LEADER, LEADER)], "works forever"),
    Row("sleeps by a timer", [shell(), program(SLEEP, 0)], "works forever"),
    Row("reads, and has not run since the keys", [shell(), program(READ, 0)], "works forever", before="[20]=5000"),
    Row("reads, and has run since", [shell(), program(READ, 0)], "waits forever", "tty_read", before="[20]=4000"),
    Row("reads a file of its own", [shell(), program(READ, 0, fds={0: "file"})], "works forever"),
    Row(
        "reads a pipe that another member fills",
        [
            shell(),
            program(READ, 0, fds={0: "pipe", 1: TTY}),
            program(READ, 0, pid=21, fds={0: TTY, 1: "pipe"}),
        ],
        "waits forever",
        "tty_read",
    ),
    Row(
        "reads a pipe from outside",
        [shell(), program(READ, 0, fds={0: "pipe"}), Process(90, 1, Thread((SLEEP, 0)), fds={1: "pipe"})],
        "works forever",
    ),
    Row(
        "waits for a child that reads",
        [shell(), program(WAIT, 0), program(READ, 0, pid=21, parent=LEADER)],
        "waits forever",
        "tty_read",
    ),
    Row("waits for a child that is gone", [shell(), program(WAIT, 0)], "works forever"),
    Row("select of the terminal alone", [shell(), program(SELECT, 1, 0x1000)], "waits forever", "tty_read"),
    Row(
        "select with a short limit, cooked",
        [shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [0, 0, 50000, 0]})],
        "waits limited",
    ),
    Row(
        "select with a short limit, raw",
        [shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [0, 0, 50000, 0]})],
        "waits limited",
        "tty_read",
        modes="raw",
    ),
    Row(
        "select of the terminal and another, with a limit",
        [shell(), program(SELECT, 4, 0x1000, 0, 0, 0x2000, memory=_TWO_FDS, fds={0: TTY, 3: "file"})],
        "waits timed mixed",
        modes="raw",
    ),
    Row(
        "the same of its own signals, looked up often",
        [
            shell(),
            program(
                SELECT, 4, 0x1000, 0, 0, 0x2000, memory=_TWO_FDS, fds={0: TTY, 3: "f"}, fdinfo={3: "sigmask:\t1\n"}
            ),
        ],
        "waits timed",
        "tty_read",
        modes="raw",
        polls=3,
    ),
    Row(
        "the same, not looked up",
        [
            shell(),
            program(
                SELECT, 4, 0x1000, 0, 0, 0x2000, memory=_TWO_FDS, fds={0: TTY, 3: "f"}, fdinfo={3: "sigmask:\t1\n"}
            ),
        ],
        "waits timed",
        modes="raw",
        polls=2,
    ),
    Row(
        "poll of the terminal",
        [shell(), program(POLL, 0x1000, 1, FOREVER, memory={0x1000: [0, 1]})],
        "waits forever",
        "tty_read",
    ),
    Row(
        "poll of the terminal and a socket",
        [shell(), program(POLL, 0x1000, 2, FOREVER, memory={0x1000: [0, 1, 3, 1]}, fds={0: TTY, 3: "socket"})],
        "waits forever mixed",
    ),
    Row(
        "epoll of the terminal",
        [shell(), program(EPOLL, 4, 0x1000, 8, FOREVER, fds={0: TTY, 4: "e"}, fdinfo={4: "tfd:        0 events: 1\n"})],
        "waits forever",
        "tty_read",
    ),
    Row(
        "epoll of the terminal and a file event",
        [
            shell(),
            program(
                EPOLL,
                4,
                0x1000,
                8,
                FOREVER,
                fds={0: TTY, 4: "e", 5: "n"},
                fdinfo={4: "tfd:        0 events: 1\ntfd:        5 events: 1\n", 5: "eventfd-count: 0\n"},
            ),
        ],
        "waits forever",
        "tty_read",
    ),
    Row("waits for a signal", [shell(), program(SIGWAIT, 0, 0, 0)], "works forever"),
    Row("writes to a stopped terminal", [shell(), program(WRITE, 1)], "works forever"),
    Row(
        "a thread reads, another waits for it",
        [shell(), program(FUTEX, 0, 0, 0, 0, others=[Thread((READ, 0))])],
        "waits forever",
        "tty_read",
    ),
    Row(
        "a thread reads, another sleeps",
        [shell(), program(SLEEP, 0, others=[Thread((READ, 0))])],
        "works forever",
    ),
    Row(
        "a thread reads, another has a timer of an hour by the clock",
        [shell(), program(FUTEX, 0x10, 0x189, 0, 0x2000, memory={0x2000: [3600, 0]}, others=[Thread((READ, 0))])],
        "works forever",
    ),
    Row(
        "a thread reads raw, another looks after the program",
        [
            shell(),
            program(READ, 0, fds={0: TTY, 4: "e"}, others=[Thread((EPOLL, 4, 0x1000, 8, 500))], fdinfo={4: ""}),
        ],
        "waits forever tended",
        "tty_read",
        modes="raw",
    ),
    Row("a full screen that waits", [shell(), program(READ, 0)], "waits forever", "fullscreen", full=1),
    Row("a full screen that works", [shell(), program(SLEEP, 0)], "works forever", full=1),
    Row(
        "a full screen before it has run",
        [shell(), program(READ, 0)],
        "works forever",
        full=1,
        before="[20]=5000",
    ),
    Row(
        "no system call is shown, sleeps in a terminal's read",
        [shell(), Process(LEADER, SHELL, Thread(place="wait_woken"), LEADER, LEADER)],
        "waits forever",
        "tty_read",
    ),
    Row(
        "no system call is shown, sleeps in a pipe's read",
        [shell(), Process(LEADER, SHELL, Thread(place="pipe_read"), LEADER, LEADER)],
        "works forever",
    ),
    Row(
        "no system call is shown, waits in another place",
        [shell(), Process(LEADER, SHELL, Thread(place="poll_schedule_timeout"), LEADER, LEADER)],
        "waits forever hidden",
    ),
    Row(
        "nothing is shown, but a password is read",
        [shell(), Process(LEADER, SHELL, Thread(place="0"), LEADER, LEADER)],
        "waits forever hidden",
        "tty_read",
        modes="secret",
    ),
    Row(
        "nothing is shown, and a line editor has been at work for three looks",
        [shell(), Process(LEADER, SHELL, Thread(place="0"), LEADER, LEADER)],
        "waits forever hidden",
        "tty_read",
        modes="raw",
    ),
    Row(
        "nothing is shown of what only passes keys on",
        [shell(), Process(LEADER, SHELL, Thread(place="0"), LEADER, LEADER, name="ssh")],
        "waits forever hidden",
        modes="raw",
    ),
    Row(
        "a read that comes back in seconds, of what was typed to",
        [shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [5, 0, 0, 0]})],
        "waits long",
        "tty_read",
        before="[10]=5000",
    ),
    Row(
        "a read that comes back in seconds, of which some are over",
        [shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [5, 0, 0, 0]})],
        "waits limited",
        before="[10]=5000",
        since=2001,
    ),
    Row(
        "a read that comes back in seconds, begun before",
        [shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [5, 0, 0, 0]})],
        "waits limited",
    ),
    Row(
        "a read that comes back in two seconds",
        [shell(), program(PSELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [2, 0, 0, 0]})],
        "waits limited",
        before="[10]=5000",
    ),
    Row(
        "a poll that comes back in seconds",
        [shell(), program(POLL, 0x1000, 1, 4000, memory={0x1000: [0, 1]})],
        "waits long",
        "tty_read",
        before="[10]=5000",
    ),
    Row(
        "a poll that comes back in seconds, not quiet for long",
        [shell(), program(POLL, 0x1000, 1, 4000, memory={0x1000: [0, 1]})],
        "waits long",
        before="[10]=5000",
        idle=200,
    ),
    Row(
        "su waits for a shell in a session of its own, which reads",
        [shell(), program(WAIT, 0, name="su"), Process(21, LEADER, Thread((READ, 0)))],
        "waits forever",
        "tty_read",
    ),
    Row(
        "the same before that one has run",
        [shell(), program(WAIT, 0, name="su"), Process(21, LEADER, Thread((READ, 0)))],
        "works forever",
        before="[21]=5000",
    ),
    Row(
        "the same with one that sleeps beside it",
        [
            shell(),
            program(WAIT, 0, name="su"),
            Process(21, LEADER, Thread((READ, 0))),
            Process(22, 21, Thread((SLEEP, 0))),
        ],
        "works forever",
    ),
    Row(
        "su waits for a shell that reads something else",
        [shell(), program(WAIT, 0, name="su"), Process(21, LEADER, Thread((READ, 0)), fds={0: "file"})],
        "works forever",
    ),
    Row(
        "Go reads, and its runtime looks after itself",
        [shell(), program(READ, 0, others=[Thread((FUTEX, 0x10, 0x80, 0, 0x2000))])],
        "waits forever tended",
        "tty_read",
        modes="raw",
    ),
    Row(
        "the same in whole lines",
        [shell(), program(READ, 0, others=[Thread((FUTEX, 0x10, 0x80, 0, 0x2000))])],
        "waits forever tended",
        quiet=9000,
        idle=9000,
    ),
    Row(
        "the same on a full screen",
        [shell(), program(READ, 0, others=[Thread((FUTEX, 0x10, 0x80, 0, 0x2000))])],
        "waits forever tended",
        "fullscreen",
        full=1,
    ),
    Row(
        "the same on a full screen, not quiet for long",
        [shell(), program(READ, 0, others=[Thread((FUTEX, 0x10, 0x80, 0, 0x2000))])],
        "waits forever tended",
        full=1,
        quiet=200,
    ),
    Row(
        "the same on a full screen, while a child's output is awaited",
        [
            shell(),
            program(
                READ,
                0,
                others=[Thread((FUTEX, 0x10, 0x80, 0, 0x2000)), Thread((EPOLL, 4, 0, 8, FOREVER))],
                fds={0: TTY, 4: "e", 5: "pipe"},
                fdinfo={4: "tfd: 5\n"},
            ),
            Process(30, LEADER, Thread((SLEEP, 0)), fds={1: "pipe"}),
        ],
        "waits forever mixed tended",
        full=1,
    ),
    Row("a lone thread that sleeps so", [shell(), program(FUTEX, 0x10, 0x80, 0, 0x2000)], "works forever"),
    *(
        Row(
            f"a child of node reads, which has been silent for {idle} ms",
            [
                shell(),
                program(EPOLL, 4, 0, 8, 6000, fds={0: TTY, 4: "e"}, others=[Thread((FUTEX, 0, 0x189, 0, 0))]),
                program(READ, 0, pid=30, parent=LEADER),
            ],
            "waits forever tended",
            looked,
            quiet=idle,
            idle=idle,
        )
        for idle, looked in ((1900, "on"), (2000, "tty_read"))
    ),
    *(
        Row(
            f"node and a timer: {text!r} at the cursor after {prompt!r}{statement and ' of ' + statement}, {modes}",
            [shell(), NODE],
            "waits timed",
            looked,
            modes=modes,
            text=text,
            prompt=prompt,
            statement=statement,
        )
        for text, prompt, statement, modes, looked in (
            ("> ", "> ", "", "raw", "tty_read"),
            ("... ", "> ", "", "raw", "tty_read"),
            ("..... ", "... ", "> f() {", "raw", "tty_read"),
            ("| ", "> ", "", "raw", "tty_read"),
            ("> ", "... ", "> f() {", "raw", "tty_read"),
            ("> ", "..... ", "> f() {", "raw", "tty_read"),
            ("> ", "| ", "> f() {", "raw", "tty_read"),
            ("> ", "... ", "> f() {", "cooked", "tty_read"),
            ("> ", "... ", "", "raw", "on"),
            ("f()", "... ", "> f() {", "raw", "on"),
            ("", "... ", "> f() {", "raw", "on"),
            ("> ", "> ", "", "cooked", "tty_read"),
            ("", "> ", "", "raw", "on"),
            ("> 1", "> ", "", "raw", "on"),
            ("> ", "", "", "raw", "on"),
        )
    ),
    *(
        Row(
            f"a prompt beside a child that {what}",
            [
                shell(),
                program(SELECT, 1, 0x1000),
                Process(21, LEADER, Thread((SLEEP, 0), state), LEADER, LEADER, fds={1: TTY}),
            ],
            "works forever",
            looked,
            modes="raw",
            text=">>> ",
            prompt=prompt,
        )
        for what, state, prompt, looked in (
            ("sleeps", "S", ">>> ", "tty_read"),
            ("runs", "R", ">>> ", "on"),
            ("sleeps, and no prompt was known", "S", "", "on"),
        )
    ),
    Row(
        "a prompt beside a socket",
        [shell(), program(POLL, 0x1000, 2, FOREVER, memory={0x1000: [0, 1, 3, 1]}, fds={0: TTY, 3: "socket"})],
        "waits forever mixed",
        "tty_read",
        modes="raw",
        text="> ",
        prompt="> ",
    ),
    Row(
        "a prompt beside a child, with nobody who reads",
        [shell(), program(SLEEP, 0)],
        "works forever",
        modes="raw",
        text=">>> ",
        prompt=">>> ",
    ),
    *(
        Row(
            f"a shell in a terminal that Python passes on, in system call {call}",
            [
                shell(),
                program(SELECT, 4, 0x1000, memory=_TWO_FDS, fds={0: TTY, 3: "m"}, fdinfo={3: "tty-index:\t1\n"}),
                Process(
                    21, LEADER, Thread((call, 0)), terminal_group=21, terminal=34817, fds={0: "pts/1"}, runtime=runtime
                ),
            ],
            examined,
            looked,
            modes="raw",
            before="[21]=5000",
        )
        for call, runtime, examined, looked in (
            (READ, 6000, "waits forever", "tty_read"),
            (READ, 5000, "works forever", "on"),
            (SLEEP, 6000, "works forever", "on"),
            (WAIT, 6000, "works forever", "on"),
        )
    ),
    *(
        Row(
            f"who is not reported holds the terminal raw around one in which a program {what}",
            [shell(), UNSEEN, Process(21, LEADER, Thread(call, state), **inner)],
            examined,
            looked,
            modes="raw",
            idle=idle,
        )
        for what, call, state, idle, inner, examined, looked in (
            ("sleeps", (SLEEP, 0), "S", 400, WITHIN, "works forever", "on"),
            ("runs", (READ, 0), "R", 400, WITHIN, "works forever", "on"),
            ("waits for a child that is gone", (WAIT, 0), "S", 400, WITHIN, "works forever", "on"),
            ("reads", (READ, 0), "S", 400, WITHIN, "waits forever relayed", "tty_read"),
            ("has only begun to read", (READ, 0), "S", 300, WITHIN, "waits forever relayed", "on"),
            ("is not reported, too", None, "S", 9000, WITHIN, "waits forever hidden", "on"),
            ("reads, without having it for its own", (READ, 0), "S", 400, STRAY, "waits forever relayed", "tty_read"),
            ("sleeps, without having it for its own", (SLEEP, 0), "S", 9000, STRAY, "works forever", "on"),
        )
    ),
    Row(
        "who is not reported holds it raw around a terminal in line mode",
        [shell(), UNSEEN, Process(21, LEADER, Thread((READ, 0)), **WITHIN)],
        "waits forever relayed",
        modes="cooked",
    ),
    *(
        Row(
            f"who is not reported holds it raw, and a process of no terminal behind a pipe {what}",
            [shell(), UNSEEN, Process(21, LEADER, Thread(call), terminal=0, fds={0: "file", 1: "pipe"})],
            examined,
            looked,
            modes="raw",
        )
        for what, call, examined, looked in (
            ("sleeps", (SLEEP, 0), "works forever", "on"),
            ("waits for it", (READ, 0), "waits forever hidden", "tty_read"),
        )
    ),
    *(
        Row(
            f"who is not reported holds it raw{what}",
            [shell(), UNSEEN],
            "waits forever hidden",
            looked,
            modes="raw",
            idle=idle,
            text=text,
            prompt="> ",
        )
        for what, idle, text, looked in (
            (", and was at work a moment ago", 300, "text", "on"),
            (", and shows the prompt of before again, though it looks up often", 40, "> ", "tty_read"),
        )
    ),
    Row(
        "who is not reported waits for a child, which reads",
        [shell(), UNSEEN, program(READ, 0, pid=21, parent=LEADER)],
        "waits forever",
        "tty_read",
    ),
    Row(
        "who is not reported waits for a child, which sleeps",
        [shell(), UNSEEN, program(SLEEP, 0, pid=21, parent=LEADER)],
        "works forever",
    ),
    *(
        Row(
            f"sudo passes keys on to a terminal of its own, where a shell reads; its helper {what}",
            [
                shell(),
                program(
                    POLL,
                    0x1000,
                    3,
                    FOREVER,
                    memory={0x1000: [0, 1, 3, 1, 5, 1]},
                    fds={0: TTY, 3: "m", 5: "pipe"},
                    fdinfo={3: "tty-index:\t1\n"},
                ),
                Process(21, LEADER, Thread(call), terminal_group=22, terminal=34817, fds={0: "pts/1", 5: "pipe"}),
                Process(22, 21, Thread((READ, 0)), terminal_group=22, terminal=34817, fds={0: "pts/1"}),
            ],
            examined,
            looked,
            modes="raw",
        )
        for what, call, examined, looked in (
            ("waits for it", (POLL, 0x1000, 1, FOREVER), "waits forever", "tty_read"),
            ("has a timer", (POLL, 0x1000, 1, 3000), "waits forever mixed", "on"),
        )
    ),
    Row(
        "a reader beside a child that was stopped",
        [shell(), program(READ, 0), Process(21, LEADER, Thread((SLEEP, 0), "T"), LEADER, LEADER)],
        "waits forever",
        "tty_read",
    ),
    *(
        Row(
            f"node has a timer of its own, which is no sign of work for {idle} ms: {text!r} at the cursor, {modes}",
            [shell(), NODE],
            "waits timed",
            looked,
            modes=modes,
            idle=idle,
            quiet=idle,
            text=text,
            cursor=cursor,
        )
        for idle, text, cursor, modes, looked in (
            (2000, "name ", 1, "raw", "tty_read"),
            (1900, "name ", 1, "raw", "on"),
            (2000, "", 1, "raw", "on"),
            (2000, "", 0, "raw", "tty_read"),
            (2000, "name ", 1, "cooked", "on"),
            (2000, "name? ", 1, "cooked", "tty_read"),
        )
    ),
    *(
        Row(
            f"a thread reads, another sleeps, {quiet} ms after {text!r}",
            [shell(), program(SLEEP, 0, others=[Thread((READ, 0))])],
            "works forever",
            looked,
            quiet=quiet,
            text=text,
        )
        for quiet, text, looked in ((2000, "? ", "tty_read"), (1900, "? ", "on"), (2000, "busy", "on"))
    ),
    *(
        Row(
            f"a full screen whose loop has a timer of {timer} ms, {since} ms after the keys",
            [shell(), program(EPOLL, 4, 0, 8, timer, fds={0: TTY, 4: "e"}, fdinfo={4: ""}, others=[Thread((READ, 0))])],
            "waits forever tended",
            looked,
            full=1,
            since=since,
        )
        for timer, since, looked in (
            (1200, 400, "on"),
            (1200, 1990, "on"),
            (1200, 2000, "fullscreen"),
            (3000, 400, "fullscreen"),
        )
    ),
    *(
        Row(
            f"a full screen around a terminal in which a program {what}",
            [
                shell(),
                program(
                    SELECT,
                    4,
                    0x1000,
                    0,
                    0,
                    0x2000,
                    memory=_TWO_FDS | {0x2000: [4, 0, 0, 0]},
                    fds={0: TTY, 3: "m"},
                    fdinfo={3: "tty-index:\t1\n"},
                ),
                Process(21, LEADER, Thread(call, state), **WITHIN),
            ],
            "waits timed mixed",
            looked,
            full=1,
        )
        for what, call, state, looked in (
            ("sleeps", (SLEEP, 0), "S", "on"),
            ("reads", (READ, 0), "S", "fullscreen"),
            ("was stopped", (SLEEP, 0), "T", "fullscreen"),
        )
    ),
    Row(
        "the other side of a terminal alone, read by who does not read this one",
        [shell(), program(SELECT, 4, 0x1000, memory={0x1000: [8]}, fds={0: TTY, 3: "m"}, fdinfo={3: "tty-index: 1\n"})],
        "works forever mixed",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_found_in_a_tree(row: Row, tmp_path: Path) -> None:
    settings = {"MODES": _MODES[row.modes], "FULL": row.full, "POLLS": row.polls, "BEFORE": row.before}
    settings |= {"QUIET": row.quiet, "IDLE": row.idle, "TEXT": row.text, "PROMPT": row.prompt}
    settings |= {"STATEMENT": row.statement, "SINCE": row.since, "CURSOR": row.cursor, "DUE": 99_000, "LOOKED": 1}
    answer = ask(tmp_path, _EXAMINE + _LOOK, [SERVER, *row.tree], **settings)
    assert answer.splitlines() == [row.examined, row.looked]


@pytest.mark.parametrize(
    ("fdinfo", "other", "others", "looked"),
    [
        ("eventfd-count: 0\n", "f", (), "tty_read"),
        ("eventfd-count: 0\n", "f", (Thread((FUTEX, 0)),), "on"),
        ("pos:\t0\n", "pipe", (), "on"),
    ],
)
def test_a_program_that_looks_up_while_it_is_examined(
    fdinfo: str, other: str, others: Sequence[Thread], looked: str, tmp_path: Path
) -> None:
    """irb does so each 0.1 s: where an examination takes longer, no two of them find the same times on a processor."""
    call = (POLL, 0x1000, 2, 100)
    fds = {0: TTY, 3: other}
    tree = program(*call, memory={0x1000: [0, 1, 3, 1]}, fds=fds, fdinfo={3: fdinfo}, others=others)
    runs = 'stty() { echo "$((++spent + 9000)) 0 9" >"$proc/20/task/20/schedstat"; printf %s "$modes_now"; }\n'
    answer = ask(tmp_path, runs + _LOOK, [SERVER, shell(), tree], MODES=_MODES["raw"], POLLS=3)
    assert answer == looked


@pytest.mark.parametrize(
    ("lines", "column", "found"),
    [
        (["> 1", "1", ">"], 2, "[> ] []"),
        (["> f() {", "..."], 4, "[... ] [> f() {]"),
        (["x", "> f() {", "... if (1) {", "..... 2", "....."], 6, "[..... ] [> f() {]"),
        (["> f() {", "| 1", "|"], 2, "[| ] [> f() {]"),
        ([">>> for x in y:", "...     2", "..."], 4, "[... ] [>>> for x in y:]"),
        (["...", "..."], 4, "[... ] [...]"),
        (["> ...x", "> ...xy"], 6, "[> ...x] []"),
        (["x", ""], 0, "[] []"),
    ],
)
def test_a_statement_begins_on_the_line_above_those_that_go_on_with_it(
    lines: Sequence[str], column: int, found: str, tmp_path: Path
) -> None:
    script = f'screen="0 0 {column} {len(lines) - 1} 0"$\'\\n\'"$TEXT"; read_prompt; echo "[$prompt] [$statement]"'
    assert ask(tmp_path, script, [], TEXT="\n".join(lines)) == found


@pytest.mark.parametrize(
    ("tree", "settings", "answer"),
    [
        ([shell(), program(READ, 0)], {}, "tty_read"),
        ([shell(), program(READ, 0)], {"FULL": 1}, "fullscreen"),
        ([shell(), program(READ, 0)], {"MODES": _MODES["raw"]}, "tty_read"),
        # A read that comes back by itself looks whether something was typed.
        ([shell(), program(READ, 0)], {"MODES": "speed; min = 0; time = 1;\n-icanon \n"}, "on"),
        ([shell(), program(SLEEP, 0)], {}, "on"),
        ([shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000)], {"MODES": _MODES["raw"]}, "on"),
        ([shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [4, 0, 0, 0]})], {"FULL": 1}, "fullscreen"),
        # Its timer is about to end.
        ([shell(), program(SELECT, 1, 0x1000, 0, 0, 0x2000, memory={0x2000: [1, 0, 0, 0]})], {"FULL": 1}, "on"),
        # A verdict that reads memory is not given at once.
        ([shell(), program(POLL, 0x1000, 1, FOREVER, memory={0x1000: [0, 1]})], {}, "on"),
        # The screen still has to show the terminal's own answer.
        ([shell(), program(READ, 0)], {"UNTYPED": "0 0 4 0 0 1\ntext"}, "on"),
    ],
)
def test_what_has_settled_at_once(
    tree: Sequence[Process], settings: dict[str, object], answer: str, tmp_path: Path
) -> None:
    given: dict[str, object] = {"UNTYPED": "", **settings}
    assert ask(tmp_path, f"untyped=$UNTYPED\n{_SETTLE}", [SERVER, *tree], **given) == answer


@pytest.mark.parametrize(
    ("call", "change", "examined"),
    [
        ((SLEEP, 0), "", 1),
        ((READ, 3), "", 1),
        ((SLEEP, 0), "echo '6000 0 1' >$proc/20/task/20/schedstat", 2),
        ((SLEEP, 0), "rm -r $proc/20", 2),
        ((SLEEP, 0), "sed -i 's/) S/) R/' $proc/20/stat", 2),
        ((SLEEP, 0), "sed -i 's/ 34816 20 / 34816 10 /' $proc/20/stat", 2),
        ((SLEEP, 0), "sed -i 's/ 34816 20 / 34816 10 /' $proc/10/stat", 2),
        # Its input may come at any time.
        ((READ, 0), "", 2),
    ],
)
def test_who_sleeps_and_has_not_run_since_is_not_examined_again(
    call: tuple[int, int], change: str, examined: int, tmp_path: Path
) -> None:
    script = f"""
count=0
eval "before_counting() $(declare -f examine | tail -n +2)"
examine() {{ count=$((count + 1)); before_counting "$@"; }}
has_settled; {change}
has_settled; echo $count
"""
    tree = [SERVER, shell(), program(*call, fds={0: TTY, 1: TTY, 2: TTY, 3: "file"})]
    given: dict[str, object] = {"BEFORE": "[20]=5000"} if call == (READ, 0) else {}
    assert ask(tmp_path, script, tree, **given) == str(examined)


def test_the_screen_of_a_program_that_sleeps_is_looked_at_now_and_then_until_it_has_run(tmp_path: Path) -> None:
    script = """
looks_skipped=0 prompt_before=$LINE
looks() { for look in {1..16}; do needs_no_look || echo -n "$look "; done; echo; }
examine thorough; looks
echo '6000 0 1' >$proc/20/task/20/schedstat; looks
"""
    tree = [SERVER, shell(), program(SLEEP, 0)]
    every = " ".join(map(str, range(1, 17)))
    assert ask(tmp_path / "sleeps", script, tree, LINE="").split(" \n") == ["8 16", every]
    assert ask(tmp_path / "edits", script, tree, LINE=">>> ").split(" \n") == [every, every]


@pytest.mark.parametrize(
    ("state", "foreground", "looks"),
    [
        ("R", LEADER, "8 16"),
        ("D", LEADER, "8 16"),
        ("R", SHELL, "8 16"),
        ("S", LEADER, "all"),
        ("Z", LEADER, "all"),
        ("R", 0, "all"),
    ],
)
def test_while_the_leader_of_the_foreground_runs_the_screen_is_looked_at_now_and_then(
    state: str, foreground: int, looks: str, tmp_path: Path
) -> None:
    script = """
looks_skipped=0 prompt_before='' settle_next=0 acts='' blocker=99 is_asleep=1
read_stat "$shell"; leader_acts && echo -n "$settle_next${blocker:+ $blocker} "
is_asleep=
for look in {1..16}; do needs_no_look || echo -n "$look "; done
"""
    leader = Process(LEADER, SHELL, Thread((READ, 0), state), terminal_group=foreground)
    tree = [SERVER, Process(SHELL, 5, Thread((READ, 0), state), terminal_group=foreground, name="bash"), leader]
    every = " ".join(map(str, range(1, 17)))
    assert ask(tmp_path, script, tree).strip() == (every if looks == "all" else f"0.015 {looks}")


@pytest.mark.parametrize(("kind", "answer"), [("p", "prompt"), ("m", "tty_read"), ("r", "on")])
def test_a_look_that_finds_a_new_prompt_ends_the_wait_without_another_question(
    kind: str, answer: str, tmp_path: Path
) -> None:
    script = f"read_screen() {{ is_dead=0 screen=text mark=10:8:0 kind={kind}; }}\nread_mark() {{ exit 1; }}\n{_LOOK}"
    tree = [SERVER, shell(foreground=SHELL, call=(WAIT, 0))]
    assert ask(tmp_path, script, tree) == answer


def test_nothing_has_settled_while_the_server_draws(tmp_path: Path) -> None:
    drawing = Process(5, 1, Thread((EPOLL, 3, 0, 0, FOREVER), "R"), name="tmux: server", fds={})
    assert ask(tmp_path, _SETTLE, [drawing, shell(), program(READ, 0)]) == "on"


@pytest.mark.parametrize(
    ("mark", "kind", "ahead", "call", "answer"),
    [
        ("10:8:0", "p", "", (READ, 0), "prompt"),
        ("10:8:", "m", "", (READ, 0), "tty_read"),
        ("10:8:", "r", "", (READ, 0), "on"),
        ("10:6:", "p", "", (READ, 0), "on"),
        ("10:5:", "p", "", (READ, 0), "on"),
        ("99:1:0", "p", "", (READ, 0), "prompt"),
        ("10:8:0", "p", "1", (READ, 0), "prompt"),
        ("10:8:0", "p", "1", (PSELECT, 1), "prompt"),
        ("10:8:0", "p", "1", (WAIT, 0), "on news"),
    ],
)
def test_a_prompt_is_a_later_mark_of_a_shell_that_reads(
    mark: str, kind: str, ahead: str, call: Sequence[int], answer: str, tmp_path: Path
) -> None:
    tree = [SERVER, shell(foreground=SHELL, call=call)]
    assert ask(tmp_path, f"types_ahead={ahead}\n{_PROMPT}", tree, MARK=mark, KIND=kind) == answer


def within(call: int, *, modes: str = "raw") -> tuple[list[Process], dict[str, object]]:
    """Return a tmux in the pane whose server has a shell in another terminal, which is in a system call."""
    tree = [
        shell(),
        program(POLL, 0x1000, 1, FOREVER, name="tmux: client", memory={0x1000: [0, 1]}),
        Process(30, 1, Thread((EPOLL, 3, 0, 0, FOREVER)), name="tmux: server", fds={5: TTY}),
        Process(31, 30, Thread((call, 0)), terminal_group=31, name="bash", fds={0: "pts/1"}),
    ]
    return tree, {"MODES": _MODES[modes], "FULL": 1}


@pytest.mark.parametrize(
    ("state", "runtime", "answer"), [("S", 5000, "tty_read"), ("R", 5000, "on"), ("S", 5001, "on"), ("Z", 5001, "on")]
)
@pytest.mark.parametrize("limit", [FOREVER, "0x2710"])
def test_a_process_that_is_woken_while_the_holders_of_its_socket_are_looked_for_goes_on(
    limit: str, state: str, runtime: int, answer: str, tmp_path: Path
) -> None:
    call = (EPOLL, 5, 0x1000, 8, limit)
    fds, fdinfo = {0: TTY, 3: "socket", 5: "epoll"}, {5: "tfd: 0\ntfd: 3\n"}
    tree = [shell(), program(*call, fds=fds, fdinfo=fdinfo)]
    # The peer sends and ends before its descriptors are looked at: then nobody else has the socket.
    later = [shell(), Process(LEADER, SHELL, Thread(call, state), LEADER, LEADER, fds=fds, runtime=runtime)]
    here, after = tmp_path / "before", write_tree(tmp_path / "after", later)
    copy = f"cp {after}/20/stat {here}/proc/20/stat; cp {after}/20/schedstat {here}/proc/20/task/20/schedstat"
    script = f"is_internal() {{ {copy}; }}\n{_LOOK}"
    assert ask(here, script, [SERVER, *tree], MODES=_MODES["raw"], POLLS=3) == answer


@pytest.mark.parametrize(("call", "answer"), [(READ, "fullscreen"), (SLEEP, "on")])
def test_a_terminal_within_is_examined_in_place_of_its_client(call: int, answer: str, tmp_path: Path) -> None:
    tree, settings = within(call)
    assert ask(tmp_path, _LOOK, [SERVER, *tree], **settings) == answer


def test_a_pane_whose_foreground_is_hidden_is_judged_by_its_modes_alone(tmp_path: Path) -> None:
    assert ask(tmp_path, _EXAMINE, [SERVER, shell(foreground=-1)]) == "waits forever hidden"


def test_a_process_whose_name_ends_like_its_field_is_read_and_a_zombie_is_none(tmp_path: Path) -> None:
    script = 'for pid in 20 21 22; do read_stat $pid && echo "$group" || echo none; done'
    zombie = Process(21, SHELL, Thread(state="Z"), name="a) b")
    assert ask(tmp_path, script, [program(READ, 0, name="x) y (z"), zombie]).split() == ["20", "none", "none"]


_NEXT_CLIENT = """
dir=$ROOT
echo 77 >"$dir/client"
sleep() { echo -n 'waits '; read -r line <"$proc/77/stat" && echo "${line/) R/) Z}" >"$proc/77/stat"; }
await_last_client
echo connects
"""


@pytest.mark.parametrize(
    ("state", "words", "answer"),
    [
        pytest.param("R", "", "waits connects", id="is_ending"),
        pytest.param("Z", "", "connects", id="has_ended"),
        pytest.param("R", "sleep 9", "connects", id="is_another_program"),
    ],
)
def test_the_next_client_comes_when_the_last_one_has_closed_its_socket(
    state: str, words: str, answer: str, tmp_path: Path
) -> None:
    """A process loses its command line before its socket, and the server crashes where both clients are at it."""
    last = Process(77, 1, Thread(state=state), name="tmux: client", words=words)
    assert ask(tmp_path, _NEXT_CLIENT, (last,)) == answer


@pytest.mark.parametrize(
    ("prompt", "works", "ends", "expected"),
    [
        (0, 0, 200_000, "open 0 p"),
        # A shell reads, and its prompt, printed before, comes when the kernel has handed it on.
        (1, 0, 200_000, "open 1 p"),
        (4, 0, 200_000, "open 4 p"),
        # A shell without marks: it has read for long.
        (99, 0, 200_000, "open 5"),
        (99, 3, 200_000, "open 8"),
        (99, 0, 100_250, "ended 2"),
    ],
)
def test_the_first_prompt_is_waited_for(tmp_path: Path, prompt: int, works: int, ends: int, expected: str) -> None:
    settings = {"PROMPT": prompt, "WORKS": works, "ENDS": ends}
    assert ask(tmp_path, _FIRST_PROMPT, [], **settings) == expected
