"""Copies of processes by CRIU, which has root's rights on the machine: a hostile policy gains nothing by them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local import criu
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import own_ids
from tests.helpers.hostile import first_words
from tests.helpers.hostile.listed import listed
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, output, running

pytestmark = [
    pytest.mark.local,
    pytest.mark.criu,
    pytest.mark.usefixtures("nothing_left"),
]


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A sandbox in its policy's hands, which can be copied."""
    async with running(make_sandbox(tmp_path / "parent", forkable=True)) as started:
        await started.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        yield started


async def start(sandbox: LocalEnvironment, program: str) -> int:
    """Start a program of Perl's above all that is copied; return its id when it has done its first part.

    Once /srv/go is there it says so in /srv/went, with the number of its turns until then.
    """
    (text,) = [
        f"{program}\n"
        'open STDIN, "<", "/dev/null"; $| = 1; print "$$\\n"; open STDOUT, ">", "/dev/null"; open STDERR, ">&STDOUT";\n'
        'my $turns = 0; until (-e "/srv/go") { $turns++; select undef, undef, undef, 0.02 }\n'
        'unlink "/etc/ld.so.preload"; open my $went, ">", "/srv/.went"; print $went $turns; close $went;\n'
        'rename "/srv/.went", "/srv/went"; sleep 1 while 1'
    ]
    process = await sandbox.exec_root(f"exec perl -e {_quoted(text)}")
    assert process.stdout is not None
    line = await process.stdout.readline()
    process.drop()
    return int(line)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


async def goes_on(sandbox: LocalEnvironment, directory: Path) -> bool:
    """Return whether the program does its second part. No program of the sandbox is needed for the question."""
    (directory / "go").touch()
    await sandbox.upload_file(directory / "go", "/srv/go")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SEC):
            while not await sandbox.is_file("/srv/went"):  # noqa: ASYNC110  # a file tells no one
                await asyncio.sleep(0.05)
            return True
    return False


@contextlib.asynccontextmanager
async def copied(
    sandbox: LocalEnvironment, root: int, directory: Path, **options: Any
) -> AsyncGenerator[LocalEnvironment]:
    dump = await sandbox.dump(root)
    try:
        copy = make_sandbox(directory / "copy", forkable=True, **options)
        copy.begin_as(dump)
        async with running(copy):
            await copy.restore(dump)
            yield copy
    finally:
        dump.close()


async def test_a_copy_goes_on_and_the_parent_too(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    root = await start(sandbox, "")
    async with copied(sandbox, root, tmp_path) as copy:
        assert await goes_on(copy, tmp_path)
        assert not await sandbox.is_file("/srv/went")
        assert await goes_on(sandbox, tmp_path)


_SENDER = """
use Socket; socket my $s, PF_INET, SOCK_DGRAM, 0; bind $s, sockaddr_in(5000, inet_aton("10.0.2.100")) or die;
sub ask {{ send $s, "hello", 0, sockaddr_in({port}, inet_aton("{address}")); recv $s, my $answer, 10, 0 }}
ask() if {is_used};
if (!fork) {{ select undef, undef, undef, 0.02 until -e "/srv/go"; ask(); mkdir "/srv/answered"; sleep 1 while 1 }}
"""


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_copy_sends_by_a_socket_of_before_used_or_not(tmp_path: Path, is_used: bool) -> None:
    options: dict[str, Any] = {"network_policy": first_words.PUBLIC, "private_network": True}
    async with first_words.echoing() as echo, running(make_sandbox(tmp_path, forkable=True, **options)) as sandbox:
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        program = _SENDER.format(port=echo.port, address=first_words.own_address(), is_used=int(is_used))
        root = await start(sandbox, program)
        assert len(echo.heard) == is_used
        async with copied(sandbox, root, tmp_path, **options) as copy:
            assert len(first_words.network_processes()) == is_used
            for heard, one in enumerate((copy, sandbox), is_used + 1):
                assert await goes_on(one, tmp_path)
                assert await output(one, "until test -d /srv/answered; do sleep 0.1; done; echo yes") == "yes"
                assert len(echo.heard) == heard


_CALLER = """
use Socket; if (!fork) {{ select undef, undef, undef, 0.02 until -e "/srv/go";
  socket my $s, PF_INET, SOCK_STREAM, 0; connect $s, sockaddr_in({port}, inet_aton("{address}")) or die;
  read $s, my $answer, 5; mkdir "/srv/$answer"; sleep 1 while 1 }}
"""


async def test_a_copy_has_its_parents_allowlist(tmp_path: Path) -> None:
    address = first_words.own_address()
    options: dict[str, Any] = {"network_policy": listed(address, "example.com"), "private_network": True}
    async with first_words.greeting() as port, running(make_sandbox(tmp_path, forkable=True, **options)) as sandbox:
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        root = await start(sandbox, _CALLER.format(port=port, address=address))
        async with copied(sandbox, root, tmp_path, **options) as copy:
            for one in (copy, sandbox):
                assert await goes_on(one, tmp_path)
                assert await output(one, "until test -d /srv/hello; do sleep 0.1; done; echo yes") == "yes"
                assert (await output(one, "getent hosts example.com")).startswith(("198.18.", "198.19."))


async def test_nothing_of_the_sandbox_is_loaded_into_criu(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """Its interpreter, its libraries and CRIU itself have files that they would obey: whoever opens one here waits."""
    program = Path((await criu.found()).program)
    libraries = [
        str(path) for path in program.parents[1].glob("lib/*/lib*.so*") if not str(path).startswith("/usr/lib")
    ]
    places = [
        "/etc/ld.so.preload", "/etc/gnutls/config", "/etc/libnl-3/classid", "/etc/criu/default.conf", "/run/criu.kdat",
        "/root/.criu/default.conf", "/usr/lib/criu/plugin.so", "/var/lib/criu/plugin.so", *libraries,
    ]  # fmt: skip
    made = ", ".join(f'"{place}"' for place in places)
    root = await start(
        sandbox,
        "use POSIX; use File::Path; use File::Basename;\n"
        f"for ({made}) {{ File::Path::make_path(dirname($_)); mkfifo($_, 0600) or die $_ }}",
    )
    async with copied(sandbox, root, tmp_path) as copy:
        assert await goes_on(copy, tmp_path)
        assert await goes_on(sandbox, tmp_path)


async def test_a_sandbox_whose_root_could_disturb_criu_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_ids, "refusal", lambda: "the test refuses")
    async with running(make_sandbox(tmp_path / "parent", forkable=True)) as sandbox:
        root = await start(sandbox, "")
        with pytest.raises(SandboxError, match="its root has a user id of this machine's"):
            await sandbox.dump(root)
        assert await goes_on(sandbox, tmp_path)


_SAME = [
    "Name",
    "Umask",
    "Tgid",
    "Pid",
    "TracerPid",
    "Uid",
    "Gid",
    "Groups",
    "NSpid",
    "Threads",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Speculation_Store_Bypass",
    "SpeculationIndirectBranch",
]
_LOOK = r"""
look() {
    cd /proc/$1 || return
    grep -E '^(FIELDS):' status
    cat limits cgroup setgroups oom_score_adj loginuid sessionid coredump_filter personality 2>&1
    tr '\\0' '\\n' <environ
    tr '\\0' ' ' <cmdline
    readlink exe cwd root
    for fd in fd/*; do echo $fd $(readlink $fd); done
    for task in task/*; do echo $task; grep -E '^(Cap|Seccomp|NoNew)' $task/status; done
    cut -d' ' -f 5-6 mountinfo
    ls /dev /sys /proc/sys
}
""".replace("FIELDS", "|".join(_SAME))


_FORKS = "$SIG{USR1} = sub { }; if (!fork) { close $_ for *STDIN, *STDOUT, *STDERR; sleep 1 while 1 }"


async def test_a_copied_process_has_the_rights_and_limits_of_its_parent(
    sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    root = await start(sandbox, _FORKS)
    look = f"{_LOOK} for pid in {root} $(cat /proc/{root}/task/{root}/children); do look $pid; done"
    expected = await output(sandbox, look)
    assert expected.count("Seccomp:\t2") == 4
    async with copied(sandbox, root, tmp_path) as copy:
        assert await output(copy, look) == expected
        own, of_copied = [
            (await output(copy, f"cd /proc/{who}/ns; for name in *; do echo $name $(readlink $name); done"))
            for who in ("self", root)
        ]
        assert own == of_copied


async def test_a_copy_runs_on_processors_of_its_own(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs a machine with two processors")
    options: dict[str, Any] = {"config": {"cpus": 1}}
    async with running(make_sandbox(tmp_path, forkable=True, **options)) as sandbox:
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        root = await start(sandbox, _FORKS)
        look = f"grep -h Cpus_allowed_list /proc/*/task/*/status | cut -f 2 | sort -u; test -e /proc/{root}"
        async with copied(sandbox, root, tmp_path, **options) as copy:
            of_parent, of_copy = await output(sandbox, look), await output(copy, look)
    assert {of_parent, of_copy} <= set(map(str, os.sched_getaffinity(0)))
    assert of_parent != of_copy


_SYSTEM_V = {"shm": "shmget(7, 4096, 01600)", "sem": "semget(7, 1, 01600)", "msg": "msgget(7, 01600)"}
_MESSAGE_QUEUE = '(my $id = syscall(240, my $name = "left", 0102, 0600, 0)) >= 0 or die $!; syscall(3, $id);'
"""mq_open, close"""


@pytest.mark.parametrize("kind", [*_SYSTEM_V, "mqueue"])
async def test_what_criu_would_leave_out_is_a_refusal(sandbox: LocalEnvironment, tmp_path: Path, kind: str) -> None:
    program = f"defined({_SYSTEM_V[kind]}) or die $!;" if kind in _SYSTEM_V else _MESSAGE_QUEUE
    root = await start(sandbox, program)
    with pytest.raises(SandboxError, match=f"which CRIU would leave out: {kind}:"):
        await sandbox.dump(root)
    assert await goes_on(sandbox, tmp_path)


_CHILD = "if (!fork) { close $_ for *STDIN, *STDOUT, *STDERR;"
_SIGNALS = (
    "while (1) { opendir my $all, '/proc';"
    "for (readdir $all) { kill NUMBER, $_ if /^[0-9]+$/ && $_ > 1 && $_ != $$ && $_ != getppid } } }"
)
HOSTILE = {
    "a thousand open files": 'our @all; for (1..1000) { open my $one, ">", "/srv/f$_" or last; push @all, $one }',
    "many children": f"for (1..40) {{ {_CHILD} sleep 1 while 1 }} }}",
    "forks all the time": f"{_CHILD} while (1) {{ my $pid = fork; exit if !$pid; waitpid $pid, 0 }} }}",
    "goes from process to process": f"{_CHILD} while (1) {{ exit if fork; select undef, undef, undef, 0.05 }} }}",
    "an ended child": "exit if !fork;",
    "a name that looks like a state": 'syscall(157, 15, my $name = ") R 1 (\\n");',
    "a deleted directory": 'mkdir "/srv/d"; chdir "/srv/d"; rmdir "/srv/d";',
    "a huge deleted file": 'open our $one, "+>", "/srv/h"; truncate $one, 1 << 40; unlink "/srv/h";',
    "a link in a file's place": 'open our $one, "+>", "/srv/h"; rename "/srv/h", "/srv/g"; '
    'symlink "/proc/1/root", "/srv/h";',
    "a pipe in a file's place": 'use POSIX; open our $one, "+>", "/srv/h"; unlink "/srv/h"; mkfifo("/srv/h", 0600);',
    "a huge file without a name": 'our $number = syscall(319, my $name = "m", 0); open our $one, "+<&=", $number; '
    "truncate $one, 1 << 40 or die;",
    "a huge shared map": "die if syscall(9, 0, 1 << 40, 3, 0x4021, -1, 0) == -1;",
    "a huge map": "die if syscall(9, 0, 1 << 46, 3, 0x4022, -1, 0) == -1;",
    "files of processes": 'open our $one, "<", "/proc/1/status"; open our $two, "+<", "/proc/self/mem" or die;',
    "io_uring, bpf, userfaultfd, pidfd": 'my $room = "\\0" x 256; '
    "our @all = map { syscall($_, 8, $room, 64) } 425, 321, 323; push @all, syscall(434, $$, 0);",
}
"""What a program does before it is copied: it goes on in the copy."""

REFUSED = {
    "an inotify": (
        "our $one = syscall(253); my $place = '/srv'; syscall(254, $one, $place, 2) >= 0 or die;",
        "fsnotify",
    ),
    "a file with another name": (
        'open our $one, "+>", "/srv/h"; link "/srv/h", "/srv/g"; unlink "/srv/h";',
        "/srv/h was removed",
    ),
    "a TCP connection": (
        "use Socket; socket our $s, PF_INET, SOCK_STREAM, 0; bind $s, sockaddr_in(0, INADDR_LOOPBACK); listen $s, 5;"
        "socket our $c, PF_INET, SOCK_STREAM, 0; connect $c, getsockname $s or die;",
        "inet",
    ),
    "a child that its parent waits for in the kernel": (
        f"{_CHILD} syscall(58); sleep 1 while 1 }}",
        "waits in the kernel for its child",
    ),
    "more memory than a copy may have": (
        f"our $all = 'a' x (60 << 20); for (1..9) {{ {_CHILD} sleep 1 while 1 }} }}",
        "more than [0-9]+ MiB",
    ),
}
"""What it does, and a word of the refusal."""
SMALL = {"memory_mb": 256, "storage_mb": 64}


@pytest.mark.parametrize("case", HOSTILE)
async def test_what_a_hostile_program_does_is_copied(sandbox: LocalEnvironment, tmp_path: Path, case: str) -> None:
    root = await start(sandbox, HOSTILE[case])
    async with copied(sandbox, root, tmp_path) as copy:
        assert await goes_on(copy, tmp_path)
        assert await goes_on(sandbox, tmp_path)


async def test_nine_hundred_threads_are_copied(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    threads = "[threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start() for _ in range(900)]"
    program = f"import threading, time; {threads}; print(__import__('os').getpid(), flush=True); time.sleep(1e6)"
    process = await sandbox.exec_root(f"exec python3 -c {_quoted(program)} </dev/null")
    assert process.stdout is not None
    root = int(await process.stdout.readline())
    process.drop()
    async with copied(sandbox, root, tmp_path) as copy:
        for each in (sandbox, copy):
            assert await output(each, f"grep Threads: /proc/{root}/status") == "Threads:\t901"


@pytest.mark.parametrize("case", REFUSED)
async def test_what_can_not_be_copied_is_refused_and_goes_on(tmp_path: Path, case: str) -> None:
    program, word = REFUSED[case]
    async with running(make_sandbox(tmp_path / "parent", forkable=True, config=SMALL)) as sandbox:
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        root = await start(sandbox, program)
        with pytest.raises(SandboxError, match=f"the local sandbox can't be copied: .*{word}"):
            await sandbox.dump(root)
        assert await goes_on(sandbox, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_who_signals_criu_disturbs_itself_alone(
    sandbox: LocalEnvironment, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may where root lacks CAP_SYS_RESOURCE, until it is stopped itself: the dump is refused then."""
    root = await start(sandbox, _CHILD + _SIGNALS.replace("NUMBER", str(int(number))))
    refusal, known = "", await criu.found()
    monkeypatch.setattr(criu, "found", AsyncMock(return_value=known._replace(limit_ms=10_000)))
    try:
        (await sandbox.dump(root)).close()
    except SandboxError as exc:
        refusal = str(exc)
    assert refusal in {"", "the local sandbox can't be copied: CRIU ended in the dump"}
    assert await goes_on(sandbox, tmp_path)
