"""System calls that the kernel refuses to a local sandbox, and ordinary work that does not notice."""

import base64
import errno
import json
import os
import signal
import struct
from pathlib import Path

import pytest

from harbor_gym.sandboxes.supervisor import seccomp
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_PROBE = ROOT / "tests" / "helpers" / "hostile" / "syscall_probe.py"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the probe knows x86_64's system call numbers")
@pytest.mark.parametrize("user", ["root", "dev"])
async def test_dangerous_system_calls_are_refused(tmp_path: Path, user: str) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await sandbox.upload_file(_PROBE, "/tmp/probe.py")
        printed = json.loads(await output(sandbox, "python3 /tmp/probe.py", user=user))
    assert {name: code for name, code in printed["refused"].items() if code != errno.EPERM} == {}
    assert {name: code for name, code in printed["unshare"].items() if code != errno.EPERM} == {}
    assert {name: code for name, code in printed["clone"].items() if code != errno.EPERM} == {}
    assert printed["unshare files"] == printed["clone plain"] == 0
    assert printed["clone3"] == printed["newer than known"] == errno.ENOSYS
    unsupported = dict.fromkeys(("packet", "alg", "vsock", "xdp"), errno.EAFNOSUPPORT)
    assert printed["families"] == {"unix": 0, "inet": 0, "inet6": 0, "netlink": 0, **unsupported}
    assert {name: code for name, code in printed["forged packets"].items() if code != errno.EPERM} == {}
    harmless = {"0x0": 0, "0x8": 0, "0xffffffff": 0}
    assert printed["personality"] == {**harmless, "0x40000": errno.ENOSYS, "0x400000": errno.ENOSYS}
    assert printed["typed into a terminal"] == errno.EPERM
    assert printed["32 bits"] == -signal.SIGSYS


async def test_every_command_is_under_both_filters(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await sandbox.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        printed = await output(
            sandbox, "grep -h ^Seccomp /proc/[2-9]*/status /proc/1?*/status | sort | uniq -c | tr -s ' \\t' ' '"
        )
    count = int(printed.split()[0])
    assert count >= 3  # sleep and this pipeline; PID 1 is a program of ours
    assert printed.splitlines() == [f"{count} Seccomp: 2", f" {count} Seccomp_filters: 2"]


_WORK = {
    "a package is built and installed": (
        "mkdir -p /p/DEBIAN /p/opt && echo hi > /p/opt/hi && printf 'Package: hi\\nVersion: 1\\nArchitecture: all\\n"
        "Maintainer: a <a@b>\\nDescription: d\\n' > /p/DEBIAN/control && dpkg-deb --build /p /hi.deb >/dev/null && "
        "apt-get install -qq -y /hi.deb >/dev/null 2>&1 && cat /opt/hi && dpkg -r hi >/dev/null && ! test -e /opt/hi",
        "hi",
    ),
    "bash controls jobs": (
        "script -qec 'bash -ic \"sleep 100 & kill %1; wait %1 2>/dev/null; echo ended \\$?\"' "
        "/dev/null | tail -n 1 | tr -d '\\r'",
        "ended 143",
    ),
    "python starts threads and processes": (
        "python3 -c 'import multiprocessing, threading, subprocess as s\n"
        't = threading.Thread(target=print, args=("thread",)); t.start(); t.join()\n'
        'print(multiprocessing.Pool(2).map(abs, [-1]), s.check_output(["echo", "ran"]).decode())\' | tr "\\n" " "',
        "thread [1] ran",
    ),
    "root becomes another user and back": ("su dev -c 'id -un; umask'; id -un", "dev\n0022\nroot"),
}


async def test_ordinary_work_goes_on(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        for what, (command, expected) in _WORK.items():
            assert await output(sandbox, command) == expected, what


async def test_setuid_programs_of_the_image_work_inside_and_give_nothing_outside(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        await output(sandbox, "cp /usr/bin/id /own-id && chmod 6755 /own-id && cp /bin/bash /sh && chmod 4755 /sh")
        assert await output(sandbox, "/own-id -u; /sh -p -c 'echo $EUID'", user="dev") == "0\n0"
        assert await output(sandbox, "/sh -p -c 'head -c 5 /etc/shadow'", user="dev") == "root:"
        rights = await output(sandbox, "/sh -p -c 'grep CapEff /proc/self/status'", user="dev")
        assert int(rights.split()[1], 16) == sum(
            1 << number for number in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
        )
        refused = await sandbox.exec(
            "/sh -p -c 'echo 1 > /proc/sys/vm/swappiness || mount -t tmpfs x /mnt'", user="dev"
        )
        assert refused.return_code != 0
        change = "usermod --password $(python3 -c 'import crypt; print(crypt.crypt(\"pw\"))' 2>/dev/null) dev"
        assert await output(sandbox, f"{change} && su dev -c 'echo pw | su dev -c whoami' 2>/dev/null") == "dev"


@pytest.mark.parametrize("user", ["root", "dev"])
async def test_programs_whose_files_have_dockers_capabilities_start(tmp_path: Path, user: str) -> None:
    attribute = struct.pack("<IIIII", 0x02000001, sum(1 << number for number in (13, 27, 29)), 0, 0, 0).hex()
    async with running(make_sandbox(tmp_path)) as sandbox:
        await output(
            sandbox,
            "cp /bin/echo /srv/capable && python3 -c \"import os; os.setxattr('/srv/capable', 'security.capability', "
            f"bytes.fromhex('{attribute}'))\"",
        )
        assert await output(sandbox, "/srv/capable started", user=user) == "started"


_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x50000
_SEVERITY = {_KILL: 0, _ERRNO: 1, _ALLOW: 2}
_COMPARE = {0x15: int.__eq__, 0x25: int.__gt__, 0x35: int.__ge__, 0x45: int.__and__}
_REFUSED = {
    ("x86_64", 0xC000003E): {
        101, 103, 134, 155, 156, *range(163, 170), *range(172, 181), 212, 227, 246, 248, 249, 250, 256, 279, 298, 300,
        304, 308, 310, 311, 312, 313, 320, 321, 323, *range(425, 434), 438, 442, 443,
    },
    ("aarch64", 0xC00000B7): {
        18, 39, 40, 41, 42, 60, 89, 104, 105, 106, 112, 116, 117, 142, 170, 217, 218, 219, 224, 225, 238, 239, 241,
        262, 265, 268, 270, 271, 272, 273, 280, 282, 294, *range(425, 434), 438, 442, 443,
    },
}  # fmt: skip
"""Machine and its name in the kernel's audit.h → numbers refused with any arguments."""
_EVERYDAY = {"x86_64": {0, 1, 9, 22, 59, 61, 257, 322}, "aarch64": {29, 59, 63, 64, 221, 222, 260, 281}}
"""read, write, mmap, pipe, execve, wait4, openat, execveat and the like."""
_CHECKED = {"x86_64": {16, 41, 53, 56, 135, 272}, "aarch64": {29, 92, 97, 198, 199, 220}}
"""ioctl, socket, socketpair, clone, personality, unshare: by their arguments."""


@pytest.mark.parametrize(("machine", "architecture"), _REFUSED)
def test_the_filters_find_every_number(machine: str, architecture: int) -> None:
    """The probe above knows one machine, and no number that nobody thought of."""
    programs = [base64.b64decode(program) for program in seccomp.filters(machine)]
    answers = {number: _strictest(programs, number, architecture) for number in range(600)}
    refused = {number for number, answer in answers.items() if answer == _ERRNO | errno.EPERM}
    assert _REFUSED[machine, architecture] <= refused
    assert not refused & _EVERYDAY[machine]
    assert {answers[number] for number in _EVERYDAY[machine]} == {_ALLOW}
    assert {answers[number] for number in (435, *range(467, 600))} == {_ERRNO | errno.ENOSYS}
    assert _strictest(programs, 0, 0x40000003) == _KILL
    for number in _CHECKED[machine]:
        values = (0x10000000, 0x5412, 0x100005412)
        assert any(_strictest(programs, number, architecture, value, value) != _ALLOW for value in values), number


_SOCKET, _SETSOCKOPT = {"x86_64": 41, "aarch64": 198}, {"x86_64": 54, "aarch64": 208}
_FORGING = [
    *(
        (_SOCKET, (family, kind | flags, 0))
        for family in (2, 10)
        for kind in (3, 10)
        for flags in (0, 0x80000, 1 << 32)
    ),
    *(
        (_SETSOCKOPT, (5, level | high, option | high))
        for level, option in ((0, 19), (41, 75), (1, 36))
        for high in (0, 1 << 32)
    ),
]
"""Raw and packet sockets; IP_TRANSPARENT, IPV6_TRANSPARENT, SO_MARK. The kernel ignores bits above an int's."""
_OPENING = [
    *((_SOCKET, (family, kind | 0x80000, 0)) for family in (1, 2, 10) for kind in (1, 2)),
    (_SOCKET, (16, 3, 0)),
    *((_SETSOCKOPT, (5, level, option)) for level, option in ((1, 2), (0, 1), (41, 26))),
]


@pytest.mark.parametrize(("machine", "architecture"), _REFUSED)
def test_the_filters_refuse_forged_packets_by_themselves(machine: str, architecture: int) -> None:
    """Where the kernel's own rights do not: in a network namespace that belongs to the sandbox."""
    programs = [base64.b64decode(program) for program in seccomp.filters(machine)]
    answers = {
        name: [_strictest(programs, numbers[machine], architecture, *arguments) for numbers, arguments in calls]
        for name, calls in (("forging", _FORGING), ("opening", _OPENING))
    }
    assert set(answers["forging"]) == {_ERRNO | errno.EPERM}
    assert set(answers["opening"]) == {_ALLOW}


def _strictest(programs: list[bytes], number: int, architecture: int, *arguments: int) -> int:
    """Return the kernel's verdict from several filters' answers: the last one's where none is stricter."""
    answers = [_answer_of(program, number, architecture, *arguments) for program in reversed(programs)]
    return min(answers, key=lambda answer: _SEVERITY[answer & 0xFFFF0000])


def _answer_of(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """Run a filter as the kernel would, with the first three arguments."""
    data = struct.pack("=IIQQQQ", number, architecture, 0, *(*arguments, 0, 0, 0)[:3])
    instructions = list(struct.iter_unpack("=HBBI", program))
    place = accumulator = 0
    while True:
        code, if_true, if_false, value = instructions[place]
        place += 1
        if code == 0x06:  # return
            return value
        if code == 0x20:  # load
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:  # and
            accumulator &= value
        elif code == 0x05:  # jump
            place += value
        else:
            place += if_true if _COMPARE[code](accumulator, value) else if_false
