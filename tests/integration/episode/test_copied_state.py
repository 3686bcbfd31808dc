"""What a policy may have made of its sandbox: each is in a copy as it is in the parent, or is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.errors import SandboxError
from tests.helpers.copies import config_of, copied, typed
from tests.helpers.tasks import BASE, write_task

pytestmark = [
    pytest.mark.local,
    pytest.mark.criu,
    pytest.mark.usefixtures("nothing_left"),
]

PATIENT_SEC = 60.0


def python(program: str) -> str:
    """Return keystrokes that run a program."""
    return f"python3 - <<'E'\n{program.strip()}\nE\n"


# --- work that goes on ------------------------------------------------------------------------------------------------


async def test_a_server_that_listens_serves_each_its_own(task_dir: Path) -> None:
    lines = (
        "mkdir /w; cd /w; echo common >one; python3 -m http.server 80 >/dev/null 2>&1 &\n",
        "until (: </dev/tcp/127.0.0.1/80) 2>/dev/null; do sleep 0.1; done; sleep 1; cd /w\n",
    )
    get = "clear; python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1/one\").read())'\n"
    async with copied(config_of(task_dir), *lines) as (parent, copy):
        await typed(copy, "echo copied >one\n")
        assert "b'copied\\n'" in await typed(copy, get, PATIENT_SEC)
        assert "b'common\\n'" in await typed(parent, get, PATIENT_SEC)


async def test_a_compilation_in_the_background_ends_in_each(task_dir: Path) -> None:
    """Python's own library, a process for each file: there is no compiler of C in the base."""
    compile_one = "python3 -c 'import py_compile, sys; py_compile.compile(sys.argv[1], sys.argv[2], doraise=True)'"
    lines = (
        "mkdir /out; ls /usr/lib/python3*/*.py | head -n 15 >/files\n",
        f"for f in $(cat /files); do {compile_one} $f /out/$(basename $f)c; done && touch /built &\n",
        "until [ $(ls /out | wc -l) -gt 2 ]; do sleep 0.05; done\n",
    )
    async with copied(config_of(task_dir), *lines) as envs:
        ask = "wait; clear; ls /built; ls /out | wc -l; cat /out/* | md5sum\n"
        seen = [(await typed(env, ask, 120.0)).splitlines()[-4:-1] for env in envs]
        assert seen[0] == seen[1]
        assert seen[0][:2] == ["/built", "15"]


async def test_a_copy_of_a_copy_of_a_copy(task_dir: Path) -> None:
    async with copied(config_of(task_dir), "x=1; sleep 1000 &\n") as (parent, copy):
        (second,) = await copy.fork(1, mode="exact")
        async with second:
            await typed(second, "x=2; echo 2 >/srv/n\n")
            (third,) = await second.fork(1, mode="exact")
            async with third:
                await typed(third, "x=3; echo 3 >/srv/n\n")
                (fourth,) = await third.fork(1, mode="exact")
                async with fourth:
                    ask = "clear; echo $x $(cat /srv/n 2>&1) $(pgrep -cx sleep) $(jobs -p | wc -l)\n"
                    envs = (parent, copy, second, third, fourth)
                    seen = [(await typed(env, ask)).splitlines()[-2] for env in envs]
    none = "cat: /srv/n: No such file or directory 1 1"
    assert seen == [f"1 {none}", f"1 {none}", "2 2 1 1", "3 3 1 1", "3 3 1 1"]


# --- what siblings draw -----------------------------------------------------------------------------------------------

DRAWN = {
    "the shell's numbers": ((), "echo $RANDOM $RANDOM", True),
    "a shell that begins later": ((), "bash -c 'echo $RANDOM $RANDOM'", False),
    "a program's numbers, seeded by the kernel": (
        ("python3 -iq\n", "import os, random, time, uuid\n"),
        "random.random(), random.randrange(10**9)",
        True,
    ),
    "the same, seeded anew": (("python3 -iq\n", "import random\n"), "random.seed(), random.random()", False),
    "the kernel's numbers": (("python3 -iq\n", "import os, uuid\n"), "os.urandom(8), uuid.uuid4()", False),
    "names of temporary files": ((), "mktemp -u", False),
    "ids of processes": (("python3 -iq\n", "import os\n"), "os.getpid(), os.getppid()", True),
}
"""What ran in the parent, what draws, and whether two siblings draw the same."""


@pytest.mark.parametrize("name", DRAWN)
async def test_siblings_draw_the_same_where_the_state_is_a_programs_own(task_dir: Path, name: str) -> None:
    lines, draw, is_same = DRAWN[name]
    async with copied(config_of(task_dir), *(lines or ("true\n",))) as (parent, copy):
        seen = [(await typed(env, f"{draw}\n", PATIENT_SEC)).splitlines()[-2] for env in (parent, copy)]
    assert (seen[0] == seen[1]) is is_same, seen


# --- processes --------------------------------------------------------------------------------------------------------

_LIBC = "import ctypes, os, select, signal, socket, threading, time; l = ctypes.CDLL(None)\n"
_HEAD = """
import ctypes, fcntl, mmap, os, select, signal, socket, struct, tempfile, threading, time, tty
l = ctypes.CDLL(None, use_errno=True)
def fork(work):
    pid = os.fork()
    if pid: return pid
    work(); os._exit(7)
def thread(work):
    threading.Thread(target=work, daemon=True).start(); time.sleep(.2)
"""


def kept(program: str) -> tuple[str, ...]:
    """Return keystrokes that run a program and ask for more."""
    return f"cat >/srv/p.py <<'E'\n{_HEAD}{program.strip()}\nE\npython3 -iq /srv/p.py\n", "\n"


STATES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "an editor with text that is not saved": (
        ("vi /srv/v\n", "iunsaved text\x1b"),
        ":%s/unsaved/changed/\n",
        "changed text\n",
    ),
    "half a line": (("cat\n", "ty"), "ped\n", "typed\ntyped"),
    "lines, ends and single keys in terminals": (
        kept(r"""
m, s = os.openpty(); os.write(m, b'one\n\x04two\n\x16\x04thr\x04fo\x16\x03u')
n, t = os.openpty(); tty.setcbreak(t); os.write(n, b'ke')
"""),
        "[os.read(s, 99) for _ in 'four'], os.write(m, b'r\\n'), os.read(s, 99), os.read(t, 99)\n",
        "([b'one\\n', b'', b'two\\n', b'\\x04thr'], 2, b'fo\\x03ur\\n', b'ke')",
    ),
    "threads' classes and classes of input, the timer slack, the filter of core dumps": (
        kept("""
i = []
def idle():
    i.append(threading.get_native_id()); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); os.nice(3)
    l.syscall(251, 1, 0, 2 << 13 | 6); time.sleep(1e6)
thread(idle); l.prctl(29, 77777, 0, 0, 0); open('/proc/self/coredump_filter', 'w').write('1')
"""),
        "os.sched_getscheduler(i[0]), os.getpriority(0, i[0]), l.syscall(252, 1, i[0]), l.prctl(30, 0, 0, 0, 0),"
        " int(open('/proc/self/coredump_filter').read(), 16)\n",
        "(5, 3, 16390, 77777, 1)",
    ),
    "ended, stopped and watched processes": (
        kept("""
z = fork(lambda: None); s = fork(lambda: (os.setpgid(0, 0), time.sleep(99)))
p = fork(lambda: None); f = os.pidfd_open(p)
time.sleep(.3); os.kill(s, 19); time.sleep(.1)
"""),
        "os.waitpid(z, 0)[1], os.waitpid(s, os.WUNTRACED)[1], os.waitid(3, f, os.WEXITED).si_status\n",
        "(1792, 4991, 7)",
    ),
    "what threads and timers wait for": (
        kept("""
signal.pthread_sigmask(0, {10, 34}); lock, got, f = threading.Lock(), [], open('/srv/x', 'w')
def wait(): lock.acquire(); got.append('futex')
def lockf(): fcntl.flock(open('/srv/x'), fcntl.LOCK_EX); got.append('flock')
lock.acquire(); thread(wait); fcntl.flock(f, fcntl.LOCK_EX); thread(lockf)
signal.alarm(3000); signal.setitimer(1, 1e5); left = (ctypes.c_long * 4)(0, 0, 2000, 0); tid = ctypes.c_void_p()
l.timer_create(1, ctypes.create_string_buffer(struct.pack('Qii', 5, 10, 0) + bytes(64)), ctypes.byref(tid))
l.timer_settime(tid, 0, left, None)
t = l.timerfd_create(1, 0); l.timerfd_settime(t, 0, (ctypes.c_long * 4)(0, 0, 0, 1000), None)
os.kill(os.getpid(), 10); signal.pthread_kill(threading.get_ident(), 34)
"""),
        "lock.release(), fcntl.flock(f, 8), time.sleep(.5), sorted(got), 0 < signal.alarm(0) <= 3000,"
        " signal.getitimer(1)[0] > 9e4, l.timer_gettime(tid, left), 0 < left[2] <= 2000, os.read(t, 8)[0],"
        " [int(n) for n in sorted(signal.sigpending())]\n",
        "(None, None, None, ['flock', 'futex'], True, True, 0, True, 1, [10, 34])",
    ),
    "memory that two share, and files without a name": (
        kept("""
maps = [mmap.mmap(-1, 4096)]; r, w = os.pipe()
for name in ('/srv/m', '/dev/shm/m'):
    with open(name, 'wb+') as file:
        file.truncate(4096); maps.append(mmap.mmap(file.fileno(), 4096))
def write():
    os.read(r, 1)
    for m in maps: m[:3] = b'two'
fork(write); f = open('/srv/f', 'w+'); f.write('kept'); f.flush(); os.unlink('/srv/f'); t = tempfile.TemporaryFile()
t.write(b'kept'); t.flush(); k = mmap.mmap(-1, 1 << 20)
l.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(k))), ctypes.c_size_t(1 << 20))
g = os.memfd_create('g', os.MFD_ALLOW_SEALING); os.write(g, b'abc'); fcntl.fcntl(g, 1033, 15)
"""),
        "os.write(w, b'x'), os.wait()[1], [m[:3] for m in maps], open('/srv/m').read(3), f.seek(0), f.read(), t.tell(),"
        " fcntl.fcntl(g, 1034), int(open('/proc/self/status').read().split('VmLck:')[1].split()[0]) >= 1024\n",
        "(1, 1792, [b'two', b'two', b'two'], 'two', 0, 'kept', 4, 15, True)",
    ),
    "full, large and closed pipes, sockets half closed, connected or waiting": (
        kept("""
r, w = os.pipe(); n = os.write(w, bytes(65536)); os.close(w); p, q = os.pipe(); fcntl.fcntl(q, 1031, 1 << 20)
os.write(q, bytes(1 << 19)); os.mkfifo('/srv/n'); f = os.open('/srv/n', os.O_RDWR); os.write(f, b'fifo')
os.unlink('/srv/n'); a, b = socket.socketpair(); a.send(b'end'); a.shutdown(1)
s = socket.socket(1); s.bind('/srv/s'); s.listen(); c = socket.socket(1); c.connect('/srv/s'); s.settimeout(9)
u, v = socket.socket(type=2), socket.socket(type=2); v.bind(('127.0.0.1', 99)); u.connect(v.getsockname())
v.settimeout(9); x, y = socket.socketpair(); x.setsockopt(1, 20, struct.pack('ll', 5, 0))
"""),
        "len(os.read(r, 1 << 17)), os.read(r, 9), len(os.read(p, 1 << 20)), fcntl.fcntl(q, 1032), os.read(f, 9),"
        " b.recv(9), b.recv(9), b.send(b'x'), c.send(b'hi'), s.accept()[0].recv(9), u.send(b'hi'), v.recv(9),"
        " x.getsockopt(1, 20, 16)[0]\n",
        "(65536, b'', 524288, 1048576, b'fifo', b'end', b'', 1, 2, b'hi', 2, b'hi', 5)",
    ),
    "nothing that a sandbox refuses": (
        kept("""
def code(result): return ctypes.get_errno() if result == -1 else result
p = fork(lambda: time.sleep(99))
tried = [code(l.ptrace(0x4206, p, None, None)), code(l.mount(b'none', b'/mnt', b'tmpfs', 0, None))]
tried += [code(l.unshare(kind << 24)) for kind in (2, 4, 8, 16, 32, 64)]
tried += [code(l.syscall(n, 1, 0, 0)) for n in (425, 323, 300, 298, 321)]
l.mmap.restype = ctypes.c_long; tried.append(code(l.mmap(None, ctypes.c_size_t(2 << 20), 3, 0x40022, -1, 0)))
"""),
        "tried\n",
        "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 12]",
    ),
    "a stopped process": (
        ("sleep 1000 & kill -STOP $!; sleep 0.2\n",),
        "clear; ps -o stat= -p $!; kill -CONT $!; sleep 0.2; ps -o stat= -p $!\n",
        "\nT\nS\n",
    ),
    "a deleted working directory": (("mkdir /d; cd /d; rmdir /d; x=5\n",), "clear; echo $x; cd ..; pwd -P\n", "\n5\n"),
    "another terminal": (
        ("python3 -c 'import pty; pty.spawn(\"/bin/bash\")'\n", "x=5\n"),
        "clear; echo $x $(tty)\n",
        "5 /dev/pts/1\n",
    ),
    "tmux in tmux": (
        ("env -u TMUX tmux -L in -f /dev/null new-session\n", "x=5\n"),
        "echo $((x+1)) $(tty)\n",
        "6 /dev/pts/1",
    ),
    "sessions of their own": (
        ("setsid sleep 1000 & (setsid sleep 2000 &); sleep 0.2\n",),
        "clear; pgrep -ax sleep | cut -d' ' -f2- | sort; kill $(pgrep -x sleep)\n",
        "\nsleep 1000\nsleep 2000\n",
    ),
    "a locked file": (("exec 9>/srv/l; flock 9\n",), "clear; flock -n /srv/l echo free || echo held\n", "\nheld\n"),
    "a processor": (("taskset -c 0 sleep 1000 &\n", "sleep 0.2\n"), "clear; taskset -cp $!\n", "list: 0\n"),
    "limits, and a trap": (
        ("ulimit -n 64; umask 027; trap 'echo caught' USR1\n",),
        "clear; ulimit -n; umask; kill -USR1 $$\n",
        "\n64\n0027\ncaught\n",
    ),
    "signalfd, timerfd, eventfd, epoll": (
        (
            "python3 -q\n",
            f"{_LIBC}e = os.eventfd(7); p = select.epoll(); p.register(e, 1)\n",
            "m = (ctypes.c_ulonglong * 16)(1 << 9); s = l.signalfd(-1, m, 0); t = l.timerfd_create(1, 0)\n",
            "l.timerfd_settime(t, 0, (ctypes.c_long * 4)(0, 0, 1000, 0), None); left = (ctypes.c_long * 4)()\n",
        ),
        "p.poll(0) == [(e, 1)], os.eventfd_read(e), l.timerfd_gettime(t, left), 0 < left[2] <= 1000\n",
        "(True, 7, 0, True)",
    ),
    "what waits in pipes, sockets and a file without a name": (
        (
            "python3 -q\n",
            f"{_LIBC}a, b = socket.socketpair(); a.send(b'stream')\n",
            "f = l.memfd_create(b'm', 0); r, w = os.pipe(); os.write(f, b'memory'), os.write(w, b'pipe')\n",
            "b.settimeout(9)\n",
        ),
        "b.recv(9), os.pread(f, 9, 0), os.read(r, 9)\n",
        "(b'stream', b'memory', b'pipe')",
    ),
    "threads, a timer and a filter of its own": (
        (
            "python3 -q\n",
            f"{_LIBC}t = threading.Thread(target=time.sleep, args=(1e6,), daemon=True); t.start()\n",
            "import struct; _ = signal.setitimer(signal.ITIMER_REAL, 1e6); _ = l.prctl(38, 1, 0, 0, 0)\n",
            "code = [(32, 0, 0, 0), (21, 0, 1, 83), (6, 0, 0, 0x50007), (6, 0, 0, 0x7fff0000)]\n",
            "text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *each) for each in code))\n",
            "l.prctl(22, 2, ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(text))))\n",
        ),
        "t.is_alive(), signal.getitimer(0)[0] > 9e5, l.mkdir(b'/srv/made'), os.path.exists('/srv/made')\n",
        "(True, True, -1, False)",
    ),
}
"""What is typed, what is asked in the parent and in its copy, and what both answer."""


@pytest.mark.parametrize("state", STATES)
async def test_a_process_is_in_the_copy_as_it_was(task_dir: Path, state: str) -> None:
    lines, ask, expected = STATES[state]
    async with copied(config_of(task_dir), *lines) as envs:
        for env in envs:
            assert expected in await typed(env, ask, PATIENT_SEC)


# --- files ------------------------------------------------------------------------------------------------------------

TREE = """
import hashlib, os, stat
seen = hashlib.sha256()
def walk(above):
    count = 0
    for name in sorted(os.listdir(above)):
        state, path = os.stat(name, dir_fd=above, follow_symlinks=False), f"/proc/self/fd/{above}/{name}"
        kind = stat.S_IFMT(state.st_mode)
        attributes = [(key, os.getxattr(path, key, follow_symlinks=False))
                      for key in sorted(os.listxattr(path, follow_symlinks=False))]
        small = kind == stat.S_IFREG and state.st_size < 1 << 20
        seen.update(repr((
            name, state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns, attributes,
            None if kind == stat.S_IFDIR else (state.st_nlink, state.st_size),
            state.st_blocks if kind == stat.S_IFREG else None,
            os.readlink(name, dir_fd=above) if kind == stat.S_IFLNK else None,
            open(path, "rb").read() if small else None,
        )).encode())
        count += 1
        if kind == stat.S_IFDIR:
            below = os.open(name, os.O_RDONLY, dir_fd=above)
            count += walk(below)
            os.close(below)
    return count
print("tree", [walk(os.open(top, os.O_RDONLY)) for top in ("/srv", "/dev/shm")], seen.hexdigest())
"""
MAKE_FILES = """
import os, socket, struct
for place in ("/srv", "/dev/shm"):
    os.chdir(place)
    with open("sparse", "wb") as file:
        file.truncate(1 << 40 if place == "/srv" else 1 << 20)
        file.seek(5 << 16)
        file.write(b"data")
    for name in ("a", "capable", "listed", "closed", "new\\nline", b"\\xff\\xfe", "-rf", "x" * 255):
        with open(name, "w") as file:
            file.write("text")
    os.link("a", "b"); os.mkfifo("pipe"); os.link("pipe", "pipe-2"); os.symlink("/proc/1/root", "link")
    os.link("link", "link-2", follow_symlinks=False)
    socket.socket(socket.AF_UNIX).bind("socket")
    os.setxattr("a", "user.x", b"value"); os.chown("a", 1234, 4321); os.chmod("a", 0o6755)
    os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
    entries = [(1, 6, -1), (2, 4, 1234), (4, 4, -1), (8, 6, 4321), (16, 6, -1), (32, 0, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.mkdir("d"); os.chmod("d", 0o3777)
    os.setxattr("listed", "system.posix_acl_access", acl); os.setxattr("d", "system.posix_acl_default", acl)
    with open("d/below", "w"):
        pass
    os.chmod("closed", 0); os.utime("closed", ns=(1, 2)); os.utime("link", ns=(3, 4), follow_symlinks=False)
os.chmod("/dev/shm", 0o700)
"""
LAYERED = (
    "rm -rf /usr/share/perl5; mkdir /usr/share/perl5; touch /usr/share/perl5/own; mv /etc/skel /etc/moved; "
    "ln /etc/hostname /srv/linked; rm /bin/cat; ln -s tac /bin/cat; chown 1234 /usr/bin/less; chmod 4755 /bin/ls\n"
)
LOOK = "ls -lA --time-style=full-iso /etc/skel /etc/moved /usr/share/perl5 /bin/cat /bin/ls /usr/bin/less 2>&1"


def with_tree(tmp_path: Path, **task: Any) -> Path:
    """Write a task whose image prints a digest of the policy's files."""
    dockerfile = f"FROM {BASE}\nCOPY tree.py /tree.py\nWORKDIR /srv\n"
    made = write_task(tmp_path / "task", dockerfile=dockerfile, **task)
    (made / "environment/tree.py").write_text(TREE)
    return made


async def test_files_of_every_kind_are_in_the_copy(tmp_path: Path) -> None:
    ask = f"clear; {LOOK} | md5sum; stat -c %a /dev/shm; python3 /tree.py\n"
    async with copied(config_of(with_tree(tmp_path)), python(MAKE_FILES), LAYERED) as envs:
        seen = [await typed(env, ask, PATIENT_SEC) for env in envs]
        assert "\n700\ntree [18, 17] " in seen[0]
        assert seen[1] == seen[0]


FULL = """
import os
with open("/srv/all", "wb") as file:
    try:
        while True:
            file.write(bytes(1 << 16)); file.flush()
    except OSError:
        os.set_blocking(0, True)
try:
    for number in range(1 << 20):
        os.close(os.open(f"/srv/{number}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print(error.strerror)
"""


async def test_a_copy_of_full_storage_is_as_full(tmp_path: Path) -> None:
    task = with_tree(tmp_path, toml="[environment]\nstorage_mb = 16\nmemory_mb = 512\n")
    async with AsyncTerminalGymEnv(config_of(task)) as parent:
        await parent.reset()
        assert "\nNo space left on device\n" in await typed(parent, python(FULL), PATIENT_SEC)
        (copy,) = await parent.fork(1, mode="exact")
        async with copy:
            seen = [await typed(env, "clear; python3 /tree.py; rm all\n", PATIENT_SEC) for env in (parent, copy)]
            assert "tree [" in seen[0]
            assert seen[1] == seen[0]
            for env in (copy, parent):
                assert "\n12M" in await typed(env, "clear; rm *; head -c 12M /dev/zero >n; du -h n\n", PATIENT_SEC)
                assert "No space left" in await typed(env, "clear; head -c 30M /dev/zero >n\n", PATIENT_SEC)


# --- refusals ---------------------------------------------------------------------------------------------------------

LEFT_OUT: dict[str, tuple[str, str]] = {
    "descriptor": (
        "a, b = socket.socketpair(type=5); socket.send_fds(a, [b'x'], [0]); keep(a, b)",
        "process [0-9]+ .python3. has not read a datagram in a Unix socket",
    ),
    "empty datagram": (
        "a, b = socket.socketpair(type=2); a.send(b''); a.send(b'two'); keep(a, b)",
        "has not read a datagram in a Unix socket",
    ),
    "credentials": (
        "a, b = socket.socketpair(); b.setsockopt(1, socket.SO_PASSCRED, 1); a.send(b'x'); keep(a, b)",
        "Control messages in queue, not supported",
    ),
    "urgent": ("a, b = socket.socketpair(); a.send(b'a', socket.MSG_OOB); keep(a, b)", "has not read an urgent byte"),
    "peek": ("a, b = socket.socketpair(); b.setsockopt(1, 42, 2); keep(a, b)", "has set SO_PEEK_OFF of a socket"),
    "UDP-Lite": (
        "a = socket.socket(type=2, proto=136); a.bind(('127.0.0.1', 99)); a.sendto(b'x', a.getsockname()); keep(a)",
        "UDP-Lite port 99 has data",
    ),
    "netlink": (
        "a = socket.socket(16, 3, 0); a.bind((0, 0)); a.send(struct.pack('IHHIIB7x', 24, 18, 769, 1, 0, 0)); keep(a)",
        "netlink: The socket has data to read",
    ),
    "connection": (
        "s = socket.create_server(('127.0.0.1', 98)); keep(s, socket.create_connection(s.getsockname()))",
        "inet",
    ),
    "semaphore": ("os.eventfd(2, os.EFD_SEMAPHORE)", "has an eventfd with EFD_SEMAPHORE or a large count"),
    "last words": ("m, s = os.openpty(); os.write(s, b'x'); os.close(s)", "what an ended program wrote to /dev/pts/1"),
    "packets": ("r, w = os.pipe2(os.O_DIRECT); os.write(w, b'one')", "packetized mode for pipes is not supported"),
    "huge pages": ("l.memfd_create(b'm', 4)", "Can't lookup mount=[0-9]+ for fd=3 path=/memfd:m"),
    "large file": (
        "f = os.open('/srv/f', 66); _ = os.write(f, bytes(66 << 20)); os.unlink('/srv/f')",
        "Can't dump ghost file /srv/f of 69206016 size",
    ),
    "queue": (
        "q = l.mq_open(b'/q', 0o102, 0o600, None); l.mq_unlink(b'/q')",
        "Can't lookup mount=[0-9]+ for fd=3 path=/q",
    ),
    "shared memory": (
        "i = l.shmget(0, 4096, 0o1600); _ = l.shmat(i, None, 0), l.shmctl(i, 0, None)",
        "leave out: shm:",
    ),
}
"""What one program has in turn, and the refusal."""


async def test_what_a_copy_would_lack_is_refused_and_the_rest_is_copied(task_dir: Path) -> None:
    program = "def keep(*all): [each.detach() for each in all]"
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        for line in kept(program):
            await typed(parent, line, PATIENT_SEC)
        for what, (line, words) in LEFT_OUT.items():
            assert "Error" not in await typed(parent, f"{line}\n", PATIENT_SEC), what
            with pytest.raises(SandboxError, match=words):
                await parent.fork(1, mode="exact")
            await typed(parent, "os.closerange(3, 99)\n", PATIENT_SEC)
        await typed(parent, "exit()\n", PATIENT_SEC)
        (copy,) = await parent.fork(1, mode="exact")
        async with copy:
            assert "\n6\n" in await typed(copy, "clear; echo $((5+1))\n", PATIENT_SEC)


_SEND_DESCRIPTOR = "_ = socket.send_fds(a, [b'second'], [0]), b.settimeout(9)\n"
_DEEP = "import os\nfor _ in range(30):\n    os.mkdir('d' * 200); os.chdir('d' * 200)"
REFUSED: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "a path that is longer than the kernel takes": (
        (python(_DEEP),),
        "the sandbox's files can't be copied: File name too long",
        "echo $((5+1))\n",
        "\n6\n",
    ),
    "a datagram that nobody has read": (
        (
            "python3 -q\n",
            "import socket; u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('127.0.0.1', 99))\n",
            "u.sendto(b'sent', ('127.0.0.1', 99)); u.settimeout(9)\n",
        ),
        "UDP port 99 has data that nobody has read",
        "u.recv(9)\n",
        "\nb'sent'\n",
    ),
    "a message with a descriptor": (
        ("python3 -q\n", "import socket; a, b = socket.socketpair(); a.send(b'plain')\n", _SEND_DESCRIPTOR),
        "a message with a descriptor waits in a socket",
        "b.recv(5), len(socket.recv_fds(b, 9, 1)[1])\n",
        "\n(b'plain', 1)\n",
    ),
    "a connection that nobody has accepted": (
        (
            "python3 -q\n",
            "import socket; s, c = socket.socket(1), socket.socket(1); s.bind('/srv/s'); s.listen(); s.settimeout(9)\n",
            "c.connect('/srv/s'); c.send(b'sent')\n",
        ),
        "unix: Non-empty write queue on an in-flight socket",
        "s.accept()[0].recv(9)\n",
        "\nb'sent'\n",
    ),
    "/dev/tty": (("exec 8<>/dev/tty\n",), "tty: ctty inheritance detected", "clear; echo six >&8\n", "\nsix\n"),
}
"""What is typed, the refusal, what is asked in the parent afterwards, and its answer."""


@pytest.mark.parametrize("what", REFUSED)
async def test_what_can_not_be_copied_is_refused_in_one_line(
    task_dir: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, words, ask, answer = REFUSED[what]
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        for line in lines:
            await typed(parent, line, PATIENT_SEC)
        capfd.readouterr()
        with pytest.raises(SandboxError, match=words) as refusal:
            await parent.fork(1, mode="exact")
        assert (str(refusal.value).count("\n"), capfd.readouterr()) == (0, ("", ""))
        assert len(str(refusal.value)) < 300
        assert answer in await typed(parent, ask, PATIENT_SEC)
