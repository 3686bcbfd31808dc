"""What a local sandbox may not ask of the kernel, and what ordinary work does not notice of that."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest

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
