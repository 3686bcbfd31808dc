"""What a local sandbox may not ask of the kernel, and what ordinary work does not notice of that."""

import errno
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym.sandboxes import supervisors
from tests.local_sandboxes import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_PROBE = Path(__file__).with_name("syscall_probe.py")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the probe knows x86_64's system call numbers")
@pytest.mark.parametrize("user", ["root", "dev"])
async def test_dangerous_system_calls_are_refused(tmp_path: Path, user: str) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await sandbox.upload_file(_PROBE, "/tmp/probe.py")
        said = json.loads(await output(sandbox, "python3 /tmp/probe.py", user=user))
    assert {name: code for name, code in said["refused"].items() if code != errno.EPERM} == {}
    assert {name: code for name, code in said["unshare"].items() if code != errno.EPERM} == {}
    assert {name: code for name, code in said["clone"].items() if code != errno.EPERM} == {}
    assert said["unshare files"] == said["clone plain"] == 0
    assert said["clone3"] == said["newer than known"] == errno.ENOSYS
    unsupported = dict.fromkeys(("packet", "alg", "vsock", "xdp"), errno.EAFNOSUPPORT)
    assert said["families"] == {"unix": 0, "inet": 0, "inet6": 0, "netlink": 0, **unsupported}
    harmless = {"0x0": 0, "0x8": 0, "0xffffffff": 0}
    assert said["personality"] == {**harmless, "0x40000": errno.EPERM, "0x400000": errno.EPERM}
    assert said["typed into a terminal"] == errno.EPERM
    assert said["32 bits"] == -signal.SIGSYS


async def test_every_process_is_under_the_filter_and_under_one_only(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await sandbox.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        said = await output(sandbox, "grep -h ^Seccomp /proc/[0-9]*/status | sort | uniq -c | tr -s ' \\t' ' '")
    count = int(said.split()[0])
    assert count >= 4  # PID 1, sleep, and this pipeline
    assert said.splitlines() == [f"{count} Seccomp: 2", f" {count} Seccomp_filters: 1"]


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


async def test_setuid_files_give_nothing(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await output(sandbox, "cp /usr/bin/id /own-id && chmod 6755 /own-id && cp /bin/bash /sh && chmod 4755 /sh")
        assert await output(sandbox, "/own-id -u; /sh -p -c 'echo $EUID'", user="dev") == "1234\n1234"
        refused = await sandbox.exec("cat /etc/shadow; /sh -p -c 'cat /etc/shadow'", user="dev")
        assert refused.return_code != 0
        assert not refused.stdout


_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x50000
_COMPARE = {0x15: int.__eq__, 0x35: int.__ge__, 0x45: int.__and__}
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
"""Machine and its name in the kernel's audit.h → the numbers refused whatever the arguments are."""
_CHECKED = {"x86_64": {16, 41, 53, 56, 135, 272}, "aarch64": {29, 92, 97, 198, 199, 220}}
"""ioctl, socket, socketpair, clone, personality, unshare: by their arguments."""


@pytest.mark.parametrize(("machine", "architecture"), _REFUSED)
def test_the_filter_finds_every_number(machine: str, architecture: int) -> None:
    """The probe above knows one machine, and no number that nobody thought of."""
    program = f"import sys; sys.path.insert(0, {str(Path(supervisors.__file__).with_name('supervisor'))!r}); "
    program += f"import syscalls; sys.stdout.buffer.write(syscalls.program({machine!r}))"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True).stdout
    answers = {number: _answer_of(said, number, architecture) for number in range(600)}
    assert {number for number, answer in answers.items() if answer == _ERRNO | errno.EPERM} == _REFUSED[
        machine, architecture
    ]
    assert {number for number, answer in answers.items() if answer == _ERRNO | errno.ENOSYS} == {435, *range(467, 600)}
    # Zeros as arguments are harmless but for a family that does not exist.
    assert {number for number, answer in answers.items() if answer == _ERRNO | errno.EAFNOSUPPORT} <= _CHECKED[machine]
    assert _answer_of(said, 0x40000000, architecture) == _ERRNO | errno.ENOSYS
    assert _answer_of(said, 0, 0x40000003) == _KILL
    for number in _CHECKED[machine]:
        assert any(_answer_of(said, number, architecture, value) != _ALLOW for value in (0x10000000, 0x5412))


def _answer_of(program: bytes, number: int, architecture: int, argument: int = 0) -> int:
    """Run a filter as the kernel would, with two arguments."""
    data = struct.pack("=IIQQQ", number, architecture, 0, argument, argument)
    instructions = list(struct.iter_unpack("=HBBI", program))
    place = accumulator = 0
    while True:
        code, if_true, if_false, value = instructions[place]
        place += 1
        if code == 0x06:  # return
            return value
        if code == 0x20:  # load
            (accumulator,) = struct.unpack_from("=I", data, value)
        else:
            place += if_true if _COMPARE[code](accumulator, value) else if_false
