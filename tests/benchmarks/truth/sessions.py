"""The sessions of the truth bench: steps, each with the end that a person at the terminal would see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

type Expected = Literal["prompt", "input", "screen", "busy"]

_SLOW_START_SEC = 40.0


@dataclass(frozen=True, slots=True)
class TruthStep:
    """One string of keystrokes."""

    keys: str
    expected: Expected
    """How the wait should end; ``busy``: by the deadline alone."""

    deadline_sec: float = 8.0
    repaints: bool = False
    """The program goes on writing by itself while it waits for input: its later output proves nothing."""

    lines: tuple[str, ...] = ()
    """Lines that the step must show, once each and in this order."""


@dataclass(frozen=True, slots=True)
class Session:
    """Steps in one terminal."""

    name: str
    steps: tuple[TruthStep, ...]
    needs: tuple[str, ...] = ()
    """Programs without which the sandbox can't take it."""

    setup: str = ""
    """A shell command that is run before, outside the terminal."""

    user: str = "root"
    is_alone: bool = False
    """It would disturb others in its sandbox: it is taken when they are over."""


def _session(
    name: str,
    *steps: TruthStep | tuple[str, Expected],
    needs: str = "",
    setup: str = "",
    user: str = "root",
    is_alone: bool = False,
) -> Session:
    made = tuple(step if isinstance(step, TruthStep) else TruthStep(*step) for step in steps)
    return Session(name, made, tuple(needs.split()), setup, user, is_alone)


def _slow(keys: str, expected: Expected) -> TruthStep:
    return TruthStep(keys, expected, deadline_sec=_SLOW_START_SEC)


def _busy(keys: str) -> TruthStep:
    return TruthStep(keys, "busy", deadline_sec=1.0)


def _script(name: str, text: str) -> str:
    return f"cat >/tmp/{name} <<'END'\n{text}\nEND\n"


def _numbered(first: int, last: int, *, delay: str = "") -> TruthStep:
    lines = tuple(f"L{number:06}" for number in range(first, last + 1))
    command = f"for i in {{{first}..{last}}}; do printf 'L%06d\\n' $i; {delay} done\n"
    return TruthStep(command, "prompt", deadline_sec=20.0, lines=lines)


_SHELL = (
    _session(
        "plain commands",
        ("true\n", "prompt"),
        ("ls /\n", "prompt"),
        ("(exit 3)\n", "prompt"),
        ("sleep 0.3\n", "prompt"),
        ("sleep 0.2; echo a; sleep 0.3; echo b\n", "prompt"),
        ("printf half\n", "prompt"),
        ("\n", "prompt"),
        ("cd /tmp; pwd\n", "prompt"),
        ("clear\n", "prompt"),
        ("reset\n", "prompt"),
        ("seq 3000\n", "prompt"),
        ("yes | head -n 20000 | tail -n 1\n", "prompt"),
        _busy("sleep 3\n"),
        ("C-c", "prompt"),
    ),
    _session(
        "editing a line",
        ("ech", "input"),
        ("o edited\n", "prompt"),
        ("Up", "input"),
        ("C-c", "prompt"),
        ("C-r", "input"),
        ("edit", "input"),
        ("C-g", "input"),
        ("C-l", "input"),
        ("ls /us\t", "input"),
        ("C-u", "input"),
        ("C-z", "input"),
        ("echo 'a\n", "input"),
        ("b'\n", "prompt"),
        ("cat <<E\n", "input"),
        ("one\n", "input"),
        ("E\n", "prompt"),
        ("C-z", "input"),
        ("C-\\", "input"),
    ),
    _session(
        "typed ahead",
        ("sleep 0.3\nsleep 0.3; echo two\n", "prompt"),
        ("read -r X\nanswer\necho got:$X\n", "prompt"),
        ("cat >/tmp/t <<E\none\ntwo\nE\nwc -l /tmp/t\n", "prompt"),
        ("read -rs X\nsecret\n", "prompt"),
        ("for i in 1 2; do\nread -r Y\ndone\na\nb\necho $Y\n", "prompt"),
        ("true\nfor ((i = 0; i < 40000; i++)); do :; done\n", "prompt"),
        ("bash -c 'read a; read b; echo $a$b'\nx\ny\n", "prompt"),
        ("python3 -c 'print(input()+input())'\nx\ny\n", "prompt"),
        ("sleep 0.5\nsleep 0.5\nsleep 0.5\n", "prompt"),
        needs="python3",
    ),
    _session(
        "shell options",
        ("set -x\n", "prompt"),
        ("false\n", "prompt"),
        ("set +x; set -u\n", "prompt"),
        ("echo ${NOPE-x}\n", "prompt"),
        ("set +u; trap 'echo E' ERR\n", "prompt"),
        ("false\n", "prompt"),
        ("trap - ERR; trap 'echo D' DEBUG\n", "prompt"),
        ("true\n", "prompt"),
        ("trap - DEBUG; set -e\n", "prompt"),
        ("test -f /nope && echo yes\n", "prompt"),
        ("echo half", "input"),
        ("C-c", "prompt"),
        ("set +e; set -o posix\n", "prompt"),
        ("sleep 0.2\n", "prompt"),
        ("set +o posix; PS1='new> '\n", "prompt"),
        ("sleep 0.2; echo x\n", "prompt"),
        ("PROMPT_COMMAND='echo hi'\n", "prompt"),
        ("sleep 0.2; echo y\n", "prompt"),
    ),
    _session(
        "marks lost",
        ("unset PROMPT_COMMAND PS0; PS1='$ '; PS2='> '\n", "input"),
        ("echo one\n", "input"),
        ("sleep 0.5; echo two\n", "input"),
        ("echo 'a\n", "input"),
        ("b'\n", "input"),
        _busy("sleep 2\n"),
        ("C-c", "input"),
        ("printf abc; sleep 0.4; printf def\n", "input"),
    ),
    _session(
        "jobs",
        TruthStep("(sleep 0.4; echo late) &\n", "prompt", repaints=True),
        ("sleep 5 &\n", "prompt"),
        ("kill %sleep; wait\n", "prompt"),
        _busy("cat /dev/zero >/dev/null\n"),
        ("C-z", "prompt"),
        ("kill -9 %cat\n", "prompt"),
        ("sleep 0.6 & wait\n", "prompt"),
        ("(sleep 0.3; echo a) | cat\n", "prompt"),
        ("time sleep 0.3\n", "prompt"),
        ("timeout 0.3 sleep 5\n", "prompt"),
        ("xargs -I% sleep 0.2 <<<'1'\n", "prompt"),
    ),
    _session(
        "readers",
        ("cat\n", "input"),
        ("hello\n", "input"),
        ("part", "input"),
        ("C-u", "input"),
        ("C-d", "prompt"),
        ("read -rp 'name? ' X\n", "input"),
        ("Ada\n", "prompt"),
        ("read -rsp 'Password: ' X\n", "input"),
        ("pw\n", "prompt"),
        ("sleep 0.4; read -rp 'go? ' X\n", "input"),
        ("y\n", "prompt"),
        ("read -rn1 -p 'key? ' X\n", "input"),
        ("k", "prompt"),
        ("select x in a b; do echo $x; break; done\n", "input"),
        ("1\n", "prompt"),
        ("rm -i /tmp/t2\n", "input"),
        ("n\n", "prompt"),
        ("tee /dev/null\n", "input"),
        ("C-d", "prompt"),
        setup="touch /tmp/t2",
    ),
    _session(
        "pipelines with a reader",
        ("cat | while read -r x; do sleep 1; echo $x; done\n", "input"),
        ("one\n", "input"),
        ("C-d", "prompt"),
        ("tee /dev/null | { while read -r x; do sleep 0.7; echo got; done; }\n", "input"),
        ("two\n", "input"),
        ("C-d", "prompt"),
        ("cat | sort\n", "input"),
        ("b\na\n", "input"),
        ("C-d", "prompt"),
        ("{ sleep 0.6; echo x; } | cat - | cat\n", "prompt"),
        _busy("cat | sleep 3\n"),
        ("C-c", "prompt"),
    ),
    _session(
        "nested shells",
        ("bash --norc\n", "input"),
        ("echo inner\n", "input"),
        ("sleep 0.5; echo slept\n", "input"),
        _busy("sleep 2\n"),
        ("C-c", "input"),
        ("exit\n", "prompt"),
        ("sh\n", "input"),
        ("sleep 0.4; echo slept\n", "input"),
        ("read x\n", "input"),
        ("y\n", "input"),
        ("exit\n", "prompt"),
        ("bash\n", "input"),
        ("sleep 0.3\n", "input"),
        ("exit\n", "prompt"),
    ),
    _session(
        "exec bash",
        ("exec bash --norc\n", "input"),
        ("echo one\n", "input"),
        ("sleep 0.5\n", "input"),
        ("cat\n", "input"),
        ("C-d", "input"),
    ),
    _session(
        "another user",
        ("su nobody -s /bin/bash\n", "input"),
        ("echo one\n", "input"),
        ("sleep 0.5; echo two\n", "input"),
        _busy("sleep 2\n"),
        ("C-c", "input"),
        ("cat\n", "input"),
        ("text\n", "input"),
        ("C-d", "input"),
        ("read -rp '? ' X\n", "input"),
        ("y\n", "input"),
        ("exit\n", "prompt"),
        ("su nobody -s /bin/sh\n", "input"),
        ("echo three\n", "input"),
        ("sleep 0.4\n", "input"),
        ("exit\n", "prompt"),
        needs="su",
    ),
)

_INTERPRETERS = (
    _session(
        "python",
        _slow("python3 -q\n", "input"),
        ("1 + 1\n", "input"),
        ("import time; time.sleep(0.5); print(2)\n", "input"),
        ("x = input('? ')\n", "input"),
        ("answer\n", "input"),
        ("def f():\n", "input"),
        ("    return 1\n\n", "input"),
        ("for i in range(3): time.sleep(0.2); print(i)\n\n", "input"),
        _busy("time.sleep(3)\n"),
        ("C-c", "input"),
        ("'part", "input"),
        ("'\n", "input"),
        ("sum(range(3_000_000))\n", "input"),
        ("exit()\n", "prompt"),
        needs="python3",
    ),
    _session(
        "python asyncio",
        _slow("python3 -m asyncio\n", "input"),
        ("1 + 1\n", "input"),
        ("await asyncio.sleep(0.5)\n", "input"),
        ("2\n", "input"),
        ("C-d", "prompt"),
        needs="python3",
    ),
    _session(
        "ipython",
        _slow("ipython3 --no-banner\n", "input"),
        ("1 + 1\n", "input"),
        ("import time; time.sleep(0.5); print(2)\n", "input"),
        _slow("exit\n", "prompt"),
        needs="ipython3",
    ),
    _session(
        "node",
        _slow("node\n", "input"),
        ("1 + 1\n", "input"),
        ("await new Promise(r => setTimeout(r, 500))\n", "input"),
        ("2\n", "input"),
        (".exit\n", "prompt"),
        _slow("node -e 'setTimeout(() => console.log(1), 400)'\n", "prompt"),
        needs="node",
    ),
    _session(
        "irb",
        _slow("irb\n", "input"),
        ("1 + 1\n", "input"),
        ("sleep 0.5; 2\n", "input"),
        ("exit\n", "prompt"),
        _slow("ruby -e 'puts gets'\n", "input"),
        ("x\n", "prompt"),
        needs="irb",
    ),
    _session(
        "gdb",
        _slow("gdb -q /bin/true\n", "input"),
        ("print 1\n", "input"),
        ("shell sleep 0.5\n", "input"),
        ("help\n", "input"),
        ("quit\n", "prompt"),
        needs="gdb",
    ),
    _session(
        "fish",
        _slow("fish\n", "input"),
        ("echo one\n", "input"),
        ("sleep 0.6; echo two\n", "input"),
        _busy("sleep 2\n"),
        ("C-c", "input"),
        ("read x\n", "input"),
        ("y\n", "input"),
        ("exit\n", "prompt"),
        needs="fish",
        is_alone=True,  # every fish of a user listens to one named pipe, and returns late while another one has it
    ),
    _session(
        "zsh",
        _slow("zsh -f\n", "input"),
        ("echo one\n", "input"),
        ("sleep 0.6; echo two\n", "input"),
        ("exit\n", "prompt"),
        needs="zsh",
    ),
    _session(
        "small interpreters",
        ("bc -q\n", "input"),
        ("1 + 1\n", "input"),
        ("quit\n", "prompt"),
        ("dc\n", "input"),
        ("1 1 + p\n", "input"),
        ("q\n", "prompt"),
        ("sqlite3\n", "input"),
        ("select 1;\n", "input"),
        (".quit\n", "prompt"),
        ("ed /tmp/t3\n", "input"),
        ("a\n", "input"),
        ("text\n.\n", "input"),
        ("w\n", "input"),
        ("q\n", "prompt"),
        ("lua5.4\n", "input"),
        ("print(1)\n", "input"),
        ("C-d", "prompt"),
        ("tclsh\n", "input"),
        ("after 500; puts 1\n", "input"),
        ("exit\n", "prompt"),
        ("perl -de 1\n", "input"),
        ("print 1\n", "input"),
        ("q\n", "prompt"),
        needs="bc dc sqlite3 ed lua5.4 tclsh",
    ),
    _session(
        "python programs",
        _slow("python3 /tmp/thread.py\n", "input"),
        ("answer\n", "prompt"),
        _slow("python3 /tmp/parent.py\n", "input"),
        ("line\n", "prompt"),
        _slow("python3 /tmp/worker.py\n", "prompt"),
        _slow("python3 /tmp/child_of_thread.py\n", "prompt"),
        _slow("python3 /tmp/looks.py\n", "prompt"),
        _slow("python3 /tmp/selects.py\n", "input"),
        ("x\n", "prompt"),
        _slow("python3 /tmp/getpw.py\n", "input"),
        ("x\n", "prompt"),
        needs="python3",
        setup=_script(
            "thread.py", "import threading\nt=threading.Thread(target=input,args=('? ',))\nt.start()\nt.join()"
        )
        + _script(
            "parent.py",
            "import subprocess,time\np=subprocess.Popen(['head','-n','1'])\np.wait()\ntime.sleep(0.4)\nprint('done')",
        )
        + _script(
            "worker.py",
            "import threading,time\nt=threading.Thread(target=lambda:(time.sleep(0.6),print('worked')))\n"
            "t.start()\nt.join()",
        )
        + _script(
            "child_of_thread.py",
            "import threading,subprocess\nt=threading.Thread(target=subprocess.run,args=(['sleep','0.6'],))\n"
            "t.start()\nt.join()\nprint('ended')",
        )
        + _script(
            "looks.py",
            "import select,time\nfor _ in range(20):\n    select.select([0],[],[],0.05)\n    time.sleep(0.01)\n"
            "print('x')",
        )
        + _script("selects.py", "import os,select\nr,w=os.pipe()\nselect.select([r,0],[],[])\ninput()")
        + _script("getpw.py", "import getpass,time\ntime.sleep(0.3)\ngetpass.getpass()\ntime.sleep(0.3)\nprint('in')"),
    ),
)

_SCREENS = (
    _session(
        "vim",
        _slow("vim -n -u NONE /tmp/v1-$$\n", "screen"),
        ("ihello\nworld", "screen"),
        ("Escape", "screen"),
        (":%!sleep 1; cat\n", "screen"),
        (":set number\n", "screen"),
        ("dd", "screen"),
        (":!sleep 0.7\n", "input"),
        ("\n", "screen"),
        (":wq\n", "prompt"),
        needs="vim",
    ),
    _session(
        "less",
        ("seq 500 | less\n", "screen"),
        (" ", "screen"),
        ("/400\n", "screen"),
        ("G", "screen"),
        ("q", "prompt"),
        ("(sleep 1; seq 100) | less\n", "screen"),
        ("q", "prompt"),
        ("(seq 5; sleep 1; seq 100) | less\n", "screen"),
        ("q", "prompt"),
        ("yes | less\n", "screen"),
        ("q", "prompt"),
        ("man -P less true 2>/dev/null || less /etc/passwd\n", "screen"),
        ("q", "prompt"),
        needs="less",
    ),
    _session(
        "nano",
        _slow("nano -I /tmp/n1-$$\n", "screen"),
        ("hello\nworld", "screen"),
        ("C-o", "screen"),
        ("Enter", "screen"),
        ("C-x", "prompt"),
        needs="nano",
    ),
    _session(
        "screens without a reader",
        ("tput smcup; echo one; sleep 1; tput rmcup\n", "prompt"),
        ("tput smcup; sleep 0.5; echo x; sleep 0.5; tput rmcup\n", "prompt"),
        TruthStep("watch -n 1 date\n", "screen", repaints=True),
        ("C-c", "prompt"),
        TruthStep("top\n", "input", repaints=True),
        ("q", "prompt"),
        needs="tput watch top",
    ),
    _session(
        "htop",
        TruthStep("htop\n", "screen", deadline_sec=20, repaints=True),
        ("q", "prompt"),
        needs="htop",
    ),
    _session(
        "dialogs",
        _slow("whiptail --yesno question 10 40\n", "screen"),
        ("Tab", "screen"),
        ("Enter", "prompt"),
        _slow("dialog --inputbox question 10 40\n", "input"),
        ("answer", "input"),
        ("Enter", "prompt"),
        needs="whiptail dialog",
    ),
    _session(
        "a tmux within",
        _slow("TMUX= tmux -L inner -f /dev/null\n", "screen"),
        ("echo inner\n", "screen"),
        ("exit\n", "prompt"),
        needs="tmux",
    ),
    _session(
        "screen",
        _slow("screen -c /dev/null -S inner /bin/bash --norc\n", "screen"),
        ("echo inner\n", "screen"),
        ("exit\n", "prompt"),
        needs="screen",
    ),
)

_HARD = (
    _session(
        "node beside others",
        _slow("node\n", "input"),
        ("const t = setInterval(() => {}, 5000)\n", "input"),
        ("1 + 1\n", "input"),
        ("clearInterval(t)\n", "input"),
        ("const s = require('http').createServer().listen(0)\n", "input"),
        ("2 + 2\n", "input"),
        ("await new Promise(r => setTimeout(r, 1500))\n", "input"),
        ("await new Promise(r => require('child_process').exec('sleep 1.2', r))\n", "input"),
        ("function f() {\n", "input"),
        ("return 1 }\n", "input"),
        (".exit\n", "prompt"),
        needs="node",
    ),
    _session(
        "a child of node reads",
        _slow("node -e \"require('child_process').spawn('cat', {stdio: 'inherit'})\"\n", "input"),
        ("one\n", "input"),
        ("C-d", "prompt"),
        _slow("node -e \"require('child_process').spawnSync('cat', {stdio: 'inherit'})\"\n", "input"),
        ("two\n", "input"),
        ("C-d", "prompt"),
        needs="node",
    ),
    _session(
        "a shell in another terminal",
        _slow('python3 -c \'import pty; pty.spawn(["/bin/bash", "--norc"])\'\n', "input"),
        ("echo one\n", "input"),
        ("sleep 0.6; echo two\n", "input"),
        ("read x\n", "input"),
        ("y\n", "input"),
        _busy("sleep 3\n"),
        ("C-c", "input"),
        ("exit\n", "prompt"),
        _slow('python3 -c \'import pty; pty.spawn(["sleep", "1.5"])\'\n', "prompt"),
        _slow("script -q -c 'bash --norc' /dev/null\n", "input"),
        ("sleep 0.6; echo two\n", "input"),
        ("cat\n", "input"),
        ("C-d", "input"),
        ("exit\n", "prompt"),
        needs="python3 script",
    ),
    _session(
        "fzf",
        _slow("seq 100 | fzf\n", "screen"),
        ("42", "screen"),
        ("\n", "prompt"),
        _slow("(sleep 1; seq 5) | fzf\n", "screen"),
        ("Escape", "prompt"),
        _slow("seq 100 | fzf --height 10\n", "input"),
        ("7", "input"),
        ("\n", "prompt"),
        _slow("seq 3 | fzf --preview 'sleep 1.2; echo {}'\n", "screen"),
        ("Escape", "prompt"),
        needs="fzf",
    ),
    _session(
        "a prompt beside a process",
        _slow("python3 -q\n", "input"),
        ("import subprocess, time\n", "input"),
        ("p = subprocess.Popen(['sleep', '30'])\n", "input"),
        ("1 + 1\n", "input"),
        ("time.sleep(0.6); 2\n", "input"),
        ("subprocess.run(['sleep', '1.5']).returncode\n", "input"),
        ("p.kill()\n", "input"),
        ("exit()\n", "prompt"),
        needs="python3",
    ),
    _session(
        "a read with a time limit",
        # Where the wait ends too late, the next keys are run as a command: its line is then not its own echo.
        ("read -t 5 x\n", "input"),
        TruthStep("L000001\n", "prompt", lines=("L000001",)),
        ("read -t 20 x\n", "input"),
        ("y\n", "prompt"),
        ("echo got:$x\n", "prompt"),
        ("read -rp 'name? ' -t 26 x\n", "input"),
        ("z\n", "prompt"),
        ("read -t 0.7 x\n", "prompt"),
        ("while ! read -t 0.4 x; do ((++n > 3)) && break; done; echo over\n", "prompt"),
    ),
    _session(
        "a command of another user",
        ("su nobody -s /bin/bash -c 'read x'\n", "input"),
        ("y\n", "prompt"),
        ("su nobody -s /bin/bash -c 'read x; sleep 0.7; echo $x; read y; sleep 0.5; echo $y'\n", "input"),
        ("one\n", "input"),
        ("two\n", "prompt"),
        ("su nobody -s /bin/bash -c 'sleep 0.8; echo done'\n", "prompt"),
        ("su nobody -s /bin/bash -c '{ sleep 1; echo a; } | cat'\n", "prompt"),
        needs="su",
    ),
)

_UNSEEN = """\
import ctypes, os, pty, select, subprocess, sys, termios, tty
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the kernel reports nothing about this process, as about apt
how, command, limit = sys.argv[1], sys.argv[2], float(sys.argv[3]) or None
master, terminal = pty.openpty()
if how == "session":
    if not (pid := os.fork()):
        os.login_tty(terminal)
        os.execvp("sh", ["sh", "-c", command])
elif how == "input":
    subprocess.Popen(["sh", "-c", command], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
else:
    child = subprocess.Popen(["sh", "-c", command], stdin=-1, stdout=-1, start_new_session=True)
    master = os.dup(child.stdout.fileno())
os.close(terminal)
before = termios.tcgetattr(0)
tty.setraw(0)
try:
    while True:
        ready, _, _ = select.select([0, master], [], [], limit)
        if master in ready:
            if not (data := os.read(master, 1024)):
                break
            os.write(1, data)
        if 0 in ready:
            os.write(master, os.read(0, 1024))
except OSError:
    pass
finally:
    termios.tcsetattr(0, termios.TCSADRAIN, before)
"""
"""Passes keys on to a terminal, or a pipe, of a child, and is not dumpable."""

_PACKAGES = r"""
mkdir -p /tmp/debs
make() {
    mkdir -p /tmp/debs/$1/DEBIAN
    printf '%s\n' "Package: $1" 'Version: 1' 'Architecture: all' 'Maintainer: a <a@example.org>' 'Description: a test' \
        >/tmp/debs/$1/DEBIAN/control
    printf '%s\n' "$2" >/tmp/debs/$1/DEBIAN/postinst
    chmod 755 /tmp/debs/$1/DEBIAN/postinst
    dpkg-deb -b /tmp/debs/$1 /tmp/debs/$1.deb
}
for sec in 0.5 1.7 5; do
    make quiet-$sec "#!/bin/sh
sleep $sec"
done
make asks '#!/bin/sh
sleep 1
printf "Really? "
read x
sleep 1.2
echo got:$x'
"""
"""Packages whose maintainer scripts are silent for a while, or ask."""

_INSTALLED = tuple(
    step
    for number, (program, sec) in enumerate(
        (program, sec) for program in ("apt-get install -y", "apt install -y", "dpkg -i") for sec in ("0.5", "1.7", "5")
    )
    for step in (
        TruthStep(f"{program} /tmp/debs/quiet-{sec}.deb; dpkg -P quiet-{sec}\n", "prompt", deadline_sec=40.0),
        TruthStep(f"echo L{number:06}\n", "prompt", lines=(f"L{number:06}",)),
    )
)

_PASSED_ON = (
    _session(
        "apt",
        *_INSTALLED,
        _slow("apt-get install -y /tmp/debs/asks.deb\n", "input"),
        ("yes\n", "prompt"),
        ("dpkg -P asks\n", "prompt"),
        needs="apt-get dpkg-deb",
        setup=_PACKAGES,
        is_alone=True,  # dpkg has one lock
    ),
    _session(
        "who passes keys on unseen",
        *(
            TruthStep(f"python3 /tmp/unseen.py {how} 'sleep 1.7; echo done' {limit}\n", "prompt", deadline_sec=20.0)
            for how in ("session", "input", "pipe")
            for limit in ("0", "0.05")
        ),
        _slow("python3 /tmp/unseen.py session 'sleep 1; read x; sleep 1.2; echo $x' 0.05\n", "input"),
        ("one\n", "prompt"),
        _slow("python3 /tmp/unseen.py input 'read x; sleep 1.2; echo $x' 0\n", "input"),
        ("two\n", "prompt"),
        needs="python3",
        setup=_script("unseen.py", _UNSEEN),
    ),
    _session(
        "sudo in a terminal of its own",
        _slow("sudo -i\n", "input"),
        ("sleep 1.5; echo slept\n", "input"),
        ("cat\n", "input"),
        ("C-d", "input"),
        ("exit\n", "prompt"),
        _slow("sudo -u nobody python3 -q\n", "input"),
        ("import time; time.sleep(1.5); 1\n", "input"),
        ("exit()\n", "prompt"),
        _slow("sudo -u nobody sleep 1.5\n", "prompt"),
        needs="sudo python3",
        setup="echo 'Defaults use_pty,lecture=never' >/etc/sudoers.d/terminal; chmod 440 /etc/sudoers.d/terminal",
    ),
    _session(
        "vim's own terminal",
        _slow("vim -u NONE -c term\n", "screen"),
        ("sleep 1; echo one\n", "screen"),
        ("cat\n", "screen"),
        ("C-d", "screen"),
        ("exit\n", "screen"),
        (":qa!\n", "prompt"),
        needs="vim.basic",
    ),
)

_INTERFACES = (
    _session(
        "Ink",
        _slow("ink-keys\n", "input"),
        ("a", "input"),
        ("b", "input"),
        ("q", "prompt"),
        needs="ink-keys",
    ),
    _session(
        "questions of node",
        _slow("inquirer-asks\n", "input"),
        ("Ada\n", "input"),
        ("y\n", "input"),
        ("\n", "prompt"),
        _slow("clack-asks\n", "input"),
        ("Ada\n", "input"),
        ("y", "prompt"),
        _slow("mkdir -p /tmp/npm-$$; cd /tmp/npm-$$; npm init\n", "input"),
        ("x\n", "input"),
        ("C-c", "prompt"),
        _slow("node\n", "input"),
        ("await new Promise(r => setTimeout(r, 4100))\n", "input"),
        (".exit\n", "prompt"),
        needs="node npm inquirer-asks clack-asks",
    ),
    _session(
        "Textual",
        _slow("textual-late 1.2\n", "screen"),
        ("a", "screen"),
        ("q", "prompt"),
        _slow("textual-late 0.4\n", "screen"),
        ("a", "screen"),
        ("q", "prompt"),
        needs="textual-late",
    ),
    _session(
        "beside a reader",
        TruthStep("python3 /tmp/talks.py\n", "input", repaints=True),
        TruthStep("a\n", "input", repaints=True),
        ("q\n", "prompt"),
        _slow("python3 /tmp/stopped.py\n", "input"),
        ("a\n", "input"),
        ("q\n", "prompt"),
        needs="python3",
        setup=_script(
            "talks.py",
            "import threading, time\ndef talk():\n    while True:\n        time.sleep(6)\n        print('tick')\n"
            "threading.Thread(target=talk, daemon=True).start()\nwhile input('? ') != 'q':\n    print('got')",
        )
        + _script(
            "stopped.py",
            "import os, signal, subprocess\np = subprocess.Popen(['sleep', '100'])\nos.kill(p.pid, signal.SIGSTOP)\n"
            "while input('? ') != 'q':\n    print('got')\np.kill()",
        ),
    ),
    _session(
        "an editor that is started with other rights",
        ("crontab -e\n", "input"),
        ("1\n", "input"),
        ("q\n", "prompt"),
        needs="crontab ed",
        setup='printf \'#!/bin/sh\nread -p "which? " x\nexec ed "$1"\n\' >/usr/bin/ask-editor; '
        "chmod 755 /usr/bin/ask-editor; echo 'export EDITOR=ask-editor' >>/root/.bashrc",
    ),
)

_LEFT_BEHIND = (
    _session(
        "a screen that was left on",
        ("sh -c 'printf \"\\033[3;7r\\033[?6h\\033(0\"; kill -9 $$'\n", "prompt"),
        ("clear\n", "prompt"),
        _numbered(1, 200),
        ("sh -c 'tput smcup; echo in; kill -9 $$'\n", "prompt"),
        _numbered(201, 400),
        needs="tput",
    ),
    _session(
        "dash",
        ("dash\n", "input"),
        ("stty -icrnl\n", "input"),
        ("sleep 0.6; echo one\n", "input"),
        ("stty raw -echo\n", "input"),
        ("sleep 0.6; echo two\n", "input"),
        ("sleep 0.6\n", "input"),
        ("exit\n", "prompt"),
        ("exec dash\n", "input"),
        ("stty raw\n", "input"),
        ("sleep 0.6; echo three\n", "input"),
        needs="dash",
    ),
)

_SIZES = (1, 37, 38, 39, 40, 41, 200, 999)
"""Lines at once: about a screen, and more than one."""

_LINES = (
    _session(
        "lines at once",
        *(_numbered(1000 * n, 1000 * n + size) for n, size in enumerate(_SIZES, 1)),
    ),
    _session("lines slowly", *(_numbered(100 * n, 100 * n + 20, delay="sleep 0.01;") for n in range(1, 6))),
    _session(
        "lines over deadlines",
        *(
            step
            for n in range(1, 5)
            for step in (
                replace(_numbered(100 * n, 100 * n + 30, delay="sleep 0.05;"), expected="busy", deadline_sec=1.0),
                TruthStep("", "prompt", deadline_sec=20.0),
            )
        ),
    ),
)

_AFTER_DAMAGE: tuple[TruthStep | tuple[str, Expected], ...] = (
    ("cat\n", "input"),
    ("one\n", "input"),
    ("C-d", "prompt"),
    _numbered(1, 999),
    _slow("python3 -q\n", "input"),
    ("import subprocess; p = subprocess.Popen(['sleep', '60'])\n", "input"),
    ("1 + 1\n", "input"),
    ("p.kill(); exit()\n", "prompt"),
    _busy("sleep 3\n"),
    ("C-c", "prompt"),
    ("wc -c <<'END'\n" + f"{'x' * 59}\n" * 30 + "END\n", "prompt"),
)

_DAMAGED: tuple[Session, ...] = (
    _session(
        # Its files lie in /dev/shm, where that user can write and 64 MB is all.
        "a full disk",
        ("cat /dev/zero >/dev/shm/fill-$$\n", "prompt"),
        *_AFTER_DAMAGE,
        needs="python3",
        user="nobody",
    ),
    _session(
        "no /tmp",
        ("mv /tmp /tmp.gone\n", "prompt"),
        *_AFTER_DAMAGE,
        ("mv /tmp.gone /tmp\n", "prompt"),
        needs="python3",
        is_alone=True,
    ),
    _session("a removed directory", ("rm -rf ${TMUX%%/socket*}\n", "prompt"), *_AFTER_DAMAGE, needs="python3"),
)

_SHORT = (
    "editing a line",
    "readers",
    "pipelines with a reader",
    "python",
    "lines over deadlines",
    "node beside others",
    "fzf",
    "a full disk",
    "who passes keys on unseen",
    "a screen that was left on",
    "dash",
)


def make_sessions(*, reduced: bool = False) -> tuple[Session, ...]:
    """Return the sessions; ``reduced`` returns the few that find most."""
    every = _SHELL + _INTERPRETERS + _HARD + _PASSED_ON + _INTERFACES + _SCREENS + _LINES + _LEFT_BEHIND + _DAMAGED
    return tuple(session for session in every if not reduced or session.name in _SHORT)
