"""Acts that a local sandbox must refuse, and that nothing is left when the sandbox or its maker is gone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.procfs import read_stat
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.sandboxes.supervisor.network import NETWORK_PROGRAM
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC, eventually
from tests.helpers.sandboxes.local import output

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_REPOSITORY = ROOT
DOCKERS_CAPABILITIES = 0xA80425FB  # The 14 that Docker gives a container's root by default.


async def test_no_file_of_the_host_is_visible(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    paths = [secret, _REPOSITORY, cache_dir(), Path("/proc/1/root") / secret.relative_to("/"), Path.home() / ".cache"]
    assert await output(sandbox, f"ls -d {' '.join(map(str, paths))} 2>/dev/null || :") == ""
    assert (
        await output(sandbox, "cat /proc/self/mountinfo | awk '{print $5}' | grep -v '^/\\(dev\\|proc\\|sys\\)'") == "/"
    )


async def test_no_process_of_the_host_is_visible(sandbox: LocalEnvironment) -> None:
    assert await output(sandbox, "exec ps -eo comm --no-headers") == "init\nps"
    namespaces = ("pid", "mnt", "net", "ipc", "uts", "cgroup", "user")
    inside = await output(sandbox, f"for n in {' '.join(namespaces)}; do readlink /proc/self/ns/$n; done")
    outside = await asyncio.to_thread(
        subprocess.run,
        ["readlink", *(f"/proc/self/ns/{name}" for name in namespaces)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(inside.split()) & set(outside.stdout.split())


async def test_there_is_no_network_but_loopback(sandbox: LocalEnvironment) -> None:
    assert await output(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo"
    talk = "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()); print('up')"
    assert await output(sandbox, f'python3 -c "{talk}"; getent hosts localhost >/dev/null; hostname') == "up\nsandbox"
    away = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "Network is unreachable" in ((await sandbox.exec(f'python3 -c "{away}"')).stderr or "")


_ATTEMPTS = [
    "echo 1 > /proc/sys/vm/swappiness",
    "echo x > /proc/sys/kernel/core_pattern",
    "umount /proc/sys",
    "mount -o remount,rw /proc/sys",
    "mount -t tmpfs tmpfs /mnt",
    "mount -t proc proc /mnt",
    "mknod /tmp/disk b 254 0",
    "echo b > /proc/sysrq-trigger",
    "echo x > /dev/new",
    *(f"chmod 666 /dev/{name} || chown 0 /dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")),
    "touch /dev/null",
    "chroot /proc/1/root/.. ls /work",
    "nsenter --target 1 --mount --net true",
    "unshare --mount true",
    "unshare --user --map-root-user --mount umount /proc/sys",
    "unshare --user --map-root-user --mount mount -o remount,bind,rw /proc/sys",
    "unshare --user --map-root-user --mount --pid --fork mount -t proc proc /mnt",
    "unshare --user --map-root-user --mount --net mount -t sysfs sysfs /mnt",
    "unshare --user --map-root-user --mount sh -c 'umount -l /proc; echo 1 > /proc/sys/vm/swappiness'",
    "python3 -c 'import os; os.sched_setaffinity(1, {0}); os.setpriority(os.PRIO_PROCESS, 0, -5)'",
    "python3 -c 'import os; os.open(\"/proc/kcore\", os.O_RDONLY)'",
    "echo 1 > /proc/irq/default_smp_affinity",
    "echo -1000 > /proc/self/oom_score_adj",
    "echo x > /sys/power/state",
    "mkdir /sys/fs/cgroup/escape",
    "cat /proc/kmsg",
    "cat /proc/keys",
    "cat /proc/timer_list",
    "cat /proc/1/mem",
    "cat /dev/mem",
    'python3 -c \'import fcntl; fcntl.ioctl(open("/dev/tty", "w"), 0x5412, b"x")\'',
    "python3 -c 'import socket; socket.sethostname(\"changed\")'",
    "date -s 2001-01-01",
    "python3 -c 'import os; os.nice(-5)'",
    "ls /run/docker.sock",
    "ls /var/run/docker.sock",
    "ls /run/containerd",
    "grep -q . /proc/net/unix && grep @/containerd /proc/net/unix",
]


async def test_root_inside_can_not_change_the_machine(sandbox: LocalEnvironment) -> None:
    assert [command for command in _ATTEMPTS if (await sandbox.exec(command)).return_code == 0] == []
    assert await output(sandbox, "ls /dev | tr '\\n' ' '") == (
        "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    )


async def test_sys_has_the_processors_by_number_and_nothing_else(sandbox: LocalEnvironment) -> None:
    assert await output(sandbox, "cd /sys && find . -mindepth 1 ! -path './fs*' | sort") == (
        "./block\n./dev\n./dev/block\n./devices\n./devices/system\n./devices/system/cpu\n"
        "./devices/system/cpu/online\n./devices/system/cpu/possible\n./devices/system/cpu/present"
    )
    assert await output(sandbox, "lscpu --parse=CPU | grep -vc '^#'; getconf _NPROCESSORS_ONLN") == (
        f"{os.cpu_count()}\n{os.cpu_count()}"
    )
    assert await output(sandbox, "lsblk --noheadings") == ""
    assert (await sandbox.exec("echo 0 > /sys/devices/system/cpu/online")).return_code != 0


async def test_no_process_of_the_host_can_be_signalled(sandbox: LocalEnvironment) -> None:
    signal_all = "kill -9 {pid}; kill -9 -{pid}; kill -9 -1"
    host, control = [await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True) for _ in range(2)]
    try:
        await sandbox.exec(signal_all.format(pid=host.pid))
        # The same words end a process that they can reach: on the host one, in the sandbox one of its own.
        words = signal_all.format(pid=control.pid).removesuffix("; kill -9 -1")
        await (await asyncio.create_subprocess_shell(words, stderr=asyncio.subprocess.DEVNULL)).wait()
        async with asyncio.timeout(PATIENCE_SEC):
            assert await control.wait() == -signal.SIGKILL
        own = await sandbox.exec("sleep 1000 & kill -9 $!; wait $!; echo $?")
        assert (own.stdout or "").split() == [str(128 + signal.SIGKILL)]
        assert host.returncode is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await host.wait()
    finally:
        for process in (host, control):
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_privileges_can_not_be_regained(sandbox: LocalEnvironment) -> None:
    await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
    status = await output(sandbox, "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status")
    fields = {name: int(value, 16) for name, value in (line.split(":\t") for line in status.splitlines())}
    assert fields["CapInh"] == fields["CapAmb"] == 0
    assert fields["CapBnd"] == fields["CapEff"] == DOCKERS_CAPABILITIES
    assert (await output(sandbox, "grep CapEff /proc/self/status", user="dev")).endswith("0" * 16)


async def test_a_user_executes_no_program_that_only_root_may(sandbox: LocalEnvironment) -> None:
    await output(sandbox, "chmod 700 /bin/bash /bin/dash")
    for _ in "before the policy", "then":
        refused = await sandbox.exec("echo hello", user="dev")
        assert (refused.return_code, refused.stderr) == (126, "/bin/bash: cannot execute: error 13\n")
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)


async def test_a_command_holds_no_descriptor_but_its_three_pipes(sandbox: LocalEnvironment) -> None:
    listing = (
        "import os; print([os.readlink(f'/proc/self/fd/{n}')[:5] for n in os.listdir('/proc/self/fd') if n != '3'])"
    )
    assert await output(sandbox, f'exec python3 -c "{listing}"') == "['pipe:', 'pipe:', 'pipe:']"


async def test_links_inside_lead_nowhere_outside(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("uploaded")
    (outside / "secret").write_text("the host's")
    await sandbox.exec(f"ln -s {outside} /out; ln -s {outside}/secret /link; mkdir /dir; ln -s {outside} /dir/deep")
    with pytest.raises(SandboxError):
        await sandbox.upload_dir(source, "/out")
    with pytest.raises(SandboxError):
        await sandbox.download_file("/link", tmp_path / "fetched")
    await sandbox.upload_file(source / "file", f"{outside}/secret")
    await sandbox.upload_dir(source, "/dir/deep")
    assert await output(sandbox, "cat /link") == "uploaded"
    await sandbox.download_dir("/dir", tmp_path / "dir")
    assert list((tmp_path / "dir").iterdir()) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "the host's"


async def test_a_fifo_for_passwd_blocks_nobody(sandbox: LocalEnvironment) -> None:
    await sandbox.exec("rm /etc/passwd && mkfifo /etc/passwd")
    with pytest.raises(SandboxError, match="user 'dev'"):
        await sandbox.exec("true", user="dev", timeout_sec=PATIENCE_SEC)


_HOST = """
import asyncio, sys
from pathlib import Path
from harbor.models.task.config import NetworkPolicy
from tests.helpers.sandboxes.local import make_sandbox

async def main():
    walls = {"network_policy": NetworkPolicy(network_mode="public")}
    sandboxes = [
        make_sandbox(Path(sys.argv[1]) / str(n), config={"memory_mb": 256, "cpus": 1}, **walls) for n in range(2)
    ]
    for sandbox in sandboxes:
        await sandbox.start(force_build=False)
        await sandbox.exec("(setsid sleep {mark} >/dev/null 2>&1 &)")
        await sandbox.exec("echo hello > /dev/udp/192.0.2.1/9")
        await asyncio.create_subprocess_exec(*sandbox.exec_argv("sleep {mark}"))
    pending = asyncio.ensure_future(sandboxes[0].exec("sleep {mark}"))
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await pending

asyncio.run(main())
"""


def _pids(mark: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text:
            found.append(int(path.parts[2]))
    return found


def _supervisors(host: int) -> list[int]:
    """Return the children of a process's forkserver; it has their arguments, too."""
    found = _pids(f" forkserver 3 {host} ")
    (forkserver,) = (pid for pid in found if _parent(pid) == host)
    return [pid for pid in found if _parent(pid) == forkserver]


def _parent(pid: int) -> int:
    """Return a living process's parent, 0 when it has ended."""
    stat = read_stat(pid)
    return 0 if stat is None or stat.has_exited else stat.parent


def _groups(owner: int) -> list[Path]:
    return [path for place in cgroups.places().values() for path in place.directory.glob(f"harbor-gym-*.{owner}.*")]


async def test_after_sigkill_of_the_host_process_nothing_is_left(tmp_path: Path) -> None:
    mark = str(time.time_ns())
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOST.replace("{mark}", mark), str(tmp_path / mark),
        cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    supervisors = _supervisors(host.pid)
    assert len(supervisors) == 2
    assert len(_pids(f"sleep {mark}")) >= 5
    networks = [pid for pid in _pids(NETWORK_PROGRAM) if _parent(pid) in supervisors]
    assert len(networks) == 2
    groups = _groups(host.pid)
    assert len(groups) == 2 * len(cgroups.places())
    host.send_signal(signal.SIGKILL)
    await host.wait()
    deadline = time.monotonic() + PATIENCE_SEC
    while left := [
        *_pids(mark),
        *_pids(f" forkserver 3 {host.pid} "),
        *(pid for pid in networks if _parent(pid)),
        *_groups(host.pid),
    ]:
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)
    assert "harbor-gym" not in await asyncio.to_thread(Path("/proc/mounts").read_text)


async def test_after_sigkill_of_the_supervisor_nothing_is_left(sandbox: LocalEnvironment) -> None:
    mark = str(time.time_ns())
    await sandbox.exec(f"setsid sleep {mark} >/dev/null 2>&1 &")
    await eventually(lambda: _pids(f"sleep {mark}"))
    (supervisor,) = _supervisors(os.getpid())
    os.kill(supervisor, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SEC
    while left := _pids(f"sleep {mark}"):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)
