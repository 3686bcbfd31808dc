"""Sandboxes on the real Apptainer: properties beyond the contract that every kind keeps."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import SandboxLostError, SandboxStartError, TaskError
from harbor_gym.sandboxes.apptainer import environment
from harbor_gym.sandboxes.apptainer.options import default_image_dir
from harbor_gym.sandboxes.apptainer.sif.store import file_name, sif_key
from harbor_gym.sandboxes.images.build import ImageSource
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.hostile.first_words import PUBLIC, greeting, own_address
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes import local
from tests.helpers.sandboxes.apptainer import make_sandbox
from tests.helpers.sandboxes.local import output, running
from tests.helpers.tasks import BASE, DONE, FORGER, write_task
from tests.integration.episode.test_kill import contents, kill_rounds, mounts

pytestmark = [pytest.mark.apptainer, pytest.mark.usefixtures("nothing_left")]

GROW = 'perl -e \'push @x, "x" x (8 << 20) and select undef, undef, undef, 0.01 for 1..40; print "held"\''
"""Takes 320 MiB in 0.4 s."""


def sif_of(directory: Path) -> Path:
    """Return the SIF file of a test sandbox's Dockerfile, which has been started before."""
    return default_image_dir() / file_name(sif_key(ImageSource(directory / "environment")))


def served_by(image: Path) -> list[int]:
    """Return the processes of this machine that serve a SIF file."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(image) in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("is_watched", [False, True], ids=["control group", "watched"])
async def test_a_hog_is_killed_and_counted_and_its_shell_lives(
    tmp_path: Path, is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_watched:
        monkeypatch.setattr(environment, "_has_group", lambda: False)
    async with running(make_sandbox(tmp_path, config={"memory_mb": 200})) as sandbox:
        before = await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        result = await sandbox.exec(f"{GROW}; echo status $?", timeout_sec=PATIENCE_SEC)
        assert (result.return_code, result.stdout) == (0, "status 137\n")
        after = await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        assert (before["oom_kills"], after["oom_kills"]) == (0, 1)
        assert await output(sandbox, "echo alive") == "alive"


async def test_what_stays_below_the_limit_lives(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, config={"memory_mb": 600})) as sandbox:
        assert await output(sandbox, GROW) == "held"
        assert sandbox.memory_kills == 0


async def test_the_machines_files_and_settings_are_not_there(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        assert await output(sandbox, "ls -A /tmp /root | grep -v '^/\\|^\\.bashrc$\\|^\\.profile$' || true") == ""
        for path in ("/proc/sys/kernel/hostname", "/sys/x", "/proc/sysrq-trigger"):
            assert (await sandbox.exec(f"echo x > {path}")).return_code != 0
        numbers = "".join(f"/sys/devices/system/cpu/{name}\n" for name in ("online", "possible", "present"))
        count = "lscpu --parse=CPU | grep -vc '^#'; lsblk --noheadings"
        assert await output(sandbox, f"find /sys -type f | sort; {count}") == f"{numbers}{os.cpu_count()}"
        assert await output(sandbox, "cat /proc/net/dev | tail -n +3 | cut -d: -f1") == "lo"
        assert await output(sandbox, "cat /etc/resolv.conf") == "# This sandbox has no network."
        assert (await sandbox.exec("mount -t tmpfs none /mnt")).return_code != 0


async def test_setuid_programs_and_accounts_work_as_in_the_image(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        assert await output(sandbox, "useradd --create-home new && stat -c %U /home/new") == "new"
        assert await output(sandbox, "chmod u+s /usr/bin/id && su dev -c 'id -u'") == "0"
        assert await output(sandbox, "stat -c %U:%G /home/dev") == "dev:dev"


@pytest.mark.parametrize("overlay", ["kernel", "fuse"])
async def test_deleted_and_replaced_files_of_the_image_stay_so(tmp_path: Path, overlay: Any) -> None:
    if overlay == "fuse" and shutil.which("fuse-overlayfs") is None:
        pytest.skip("fuse-overlayfs is missing: apt-get install fuse-overlayfs")
    async with running(make_sandbox(tmp_path, overlay=overlay)) as sandbox:
        await output(sandbox, "rm -r /usr/share/doc; mkdir /usr/share/doc; mv /etc/passwd /etc/moved; rm /etc/shadow")
        assert await output(sandbox, "ls -A /usr/share/doc; ls /etc/passwd /etc/shadow 2>/dev/null; wc -l < /etc/moved")
        assert await output(sandbox, "ls -A /usr/share/doc") == ""


async def test_a_sif_file_of_ones_own_with_files_and_a_setup_script(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path / "built")) as first:
        assert await output(first, "echo $GREETING; pwd") == "hello world\n/app"
    context = tmp_path / "task" / "environment"
    (context / "files").mkdir(parents=True)
    shutil.copy(sif_of(tmp_path / "built"), context / "image.sif")
    (context / "files" / "data.txt").write_text("brought\n")
    (context / "files" / "setup.sh").write_text("tr a-z A-Z < data.txt > /etc/set-up; whoami >> /etc/set-up\n")
    sandbox = make_sandbox(
        tmp_path / "task", dockerfile=None, config={"docker_image": "image.sif"}, workdir="/opt/work",
        enable_environment_dir_upload=False,
    )  # fmt: skip
    async with running(sandbox):
        assert await output(sandbox, "pwd; cat data.txt /etc/set-up; echo $GREETING") == (
            "/opt/work\nbrought\nBROUGHT\nroot\nhello world"
        )


async def test_a_setup_command_runs_at_each_start_and_its_failure_is_the_starts(tmp_path: Path) -> None:
    sandbox = make_sandbox(tmp_path, setup_command="echo done > /etc/mark")
    async with running(sandbox):
        assert await output(sandbox, "cat /etc/mark") == "done"
        assert not sandbox.shares_setup
    with pytest.raises(SandboxStartError, match=r"status 3: (?s:.*)no such luck"):
        await make_sandbox(tmp_path, setup_command="echo no such luck >&2; exit 3").start(force_build=False)


async def test_a_task_whose_image_is_for_nobody_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "image.sif").write_bytes(b"not an image")
    sandbox = make_sandbox(tmp_path, dockerfile=None, config={"docker_image": "image.sif"})
    with pytest.raises(SandboxStartError, match=r"image\.sif is no SIF file"):
        await sandbox.start(force_build=False)
    with pytest.raises(SandboxStartError, match="started before"):
        await sandbox.start(force_build=False)


async def test_the_words_of_squashfuse_are_the_errors_text(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)):
        image = sif_of(tmp_path)
    cut = tmp_path / "environment" / "cut.sif"
    cut.write_bytes(image.read_bytes()[: 1 << 20])
    sandbox = make_sandbox(tmp_path, dockerfile=None, config={"docker_image": "cut.sif"})
    with pytest.raises(SandboxStartError, match="squashfuse"):
        await sandbox.start(force_build=False)


async def test_many_that_need_one_image_build_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="harbor_gym.sandboxes.images.build")
    dockerfile = f"FROM debian:bookworm-slim\nRUN echo {uuid.uuid4()} > /etc/unique\n"
    directory = tmp_path / "sif"
    sandboxes = [
        make_sandbox(tmp_path / str(number), dockerfile=dockerfile, image_cache_dir=directory) for number in range(4)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(sandbox.start(force_build=False))
        made = [path.name for path in directory.iterdir() if not path.name.endswith(".lock")]
        assert len(made) == 1, made
        assert sum("built the image" in record.message for record in caplog.records) == 1
    finally:
        for sandbox in sandboxes:
            await sandbox.stop(delete=True)


async def test_a_sandbox_whose_image_is_served_no_more_is_lost(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        command = asyncio.ensure_future(sandbox.exec("sleep 1000"))
        await output(sandbox, "until pgrep -x sleep; do sleep 0.05; done")
        assert await sandbox.is_up()
        [serving] = served_by(sif_of(tmp_path))
        os.kill(serving, signal.SIGKILL)
        with pytest.raises(SandboxLostError, match="program that serves its files"):
            await command
        assert not await sandbox.is_up()
        with pytest.raises(SandboxLostError):
            await sandbox.exec("true")


async def test_an_episode_is_solved_and_graded_in_a_pristine_view(task_dir: Path) -> None:
    config = task_dir / "task.toml"
    config.write_text(f'{config.read_text()}[metadata]\nverify_paths = ["/srv/answer"]\n')
    settings = TerminalEnvConfig(task_dir=task_dir, sandbox="apptainer", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(settings) as env:
        await env.reset()
        cheat = "printf '#!/bin/sh\\necho done\\n' > /usr/local/bin/cat; chmod 755 /usr/local/bin/cat\n"
        await env.step([(cheat, 5.0)])
        _, reward, *_ = await env.step('{"analysis": "", "plan": "", "commands": [], "task_complete": true}')
        assert reward == 0
        await env.reset()
        await env.step([(DONE, 30.0)])
        _, reward, *_ = await env.step('{"analysis": "", "plan": "", "commands": [], "task_complete": true}')
        assert reward == 1


async def test_what_runs_on_is_there_for_the_verifier_and_writes_no_verdict(task_dir: Path) -> None:
    judge = "#!/bin/bash\npgrep -f '[s]leep 1007' >/dev/null; echo $((1 - $?)) > /logs/verifier/reward.txt; sleep 0.5\n"
    (task_dir / "tests/test.sh").write_text(judge)
    settings = TerminalEnvConfig(task_dir=task_dir, sandbox="apptainer", confirm_task_complete=False)
    forges = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    moves = f"mv /logs/verifier /logs/$RANDOM; {forges}; mv /tests /$RANDOM"
    async with AsyncTerminalGymEnv(settings) as env:
        for left, paid in (("sleep 1007", 1), (f"bash -c '{FORGER}'", 0), (f"bash -c 'while :; do {moves}; done'", 0)):
            await env.reset()
            await env.step([(f"setsid {left} >/dev/null 2>&1 </dev/null &\n", 5.0)])
            _, reward, _, info = await env.step(COMPLETE)
            assert (reward, info["metrics"]["stopped_processes"]) == (paid, 0)


@pytest.mark.slow
def test_16_are_live_at_once_and_gone_afterwards() -> None:
    done = run_benchmark("scale", "--env", "apptainer", "--sandboxes", "16", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["sandboxes"], report["lost"], report["left"]) == (16, 0, [])


@pytest.mark.slow
def test_hosts_killed_in_the_midst_of_episodes_leave_nothing(task_dir: Path, scratch: Path) -> None:
    before = mounts()
    outcome = kill_rounds("apptainer", task_dir, count=4, at_once=4, max_sec=2.0)
    assert outcome["began"] >= 16
    assert outcome["orphans"] == []
    assert mounts() == before
    left = [name for name in contents(scratch) if "apptainer" in name or "sif" in name]
    assert left == []


async def test_ids_above_65535_are_there_where_root_runs_it(tmp_path: Path) -> None:
    dockerfile = (
        f"FROM {BASE}\nRUN touch /high && chown 197609:100001 /high && useradd -m -u 70000 worker\nUSER 100001\n"
    )
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile, setup_command="chown 197609 /srv")) as sandbox:
        assert await output(sandbox, "id -u; stat -c %u:%g /high") == "100001\n197609:100001"
        chown = "touch /run/x; chown 131072 /run/x; stat -c %u /run/x"
        assert await output(sandbox, chown, user="root") == "131072"
        assert await output(sandbox, "stat -c %u /srv") == "197609"
        assert await output(sandbox, "id -u; touch ~/x; stat -c %U ~/x", user="worker") == "70000\nworker"


@pytest.mark.parametrize(
    ("line", "toml", "setup_command"),
    [
        ("RUN touch /high && chown 2000000000 /high", "", None),
        ("USER 2000000000", "", None),
        ("RUN echo w:x:2000000000:0::/:/bin/sh >>/etc/passwd\nUSER w", "", None),
        ("", "[agent]\nuser = 2000000000\n", None),
        ("", "", "chown 2000000000 /srv"),
    ],
)
async def test_an_id_that_roots_sandbox_has_not_is_the_tasks_fault_at_the_start(
    line: str, toml: str, setup_command: str | None, tmp_path: Path
) -> None:
    task = write_task(tmp_path, dockerfile=f"FROM {BASE}\n{line}\n", toml=toml)
    config = TerminalEnvConfig(task_dir=task, sandbox="apptainer", setup_command=setup_command)
    with pytest.raises(TaskError, match=r"2000000000.*lower ids.*--env docker"):
        async with AsyncTerminalGymEnv(config) as env:
            await env.reset()


PING = """
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try:
        with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as echo:
            echo.settimeout(10)
            echo.sendto(bytes((8, 0, 0xF7, 0xFE, 0, 0, 0, 1)), ("127.0.0.1", 0))
            print("answered", len(echo.recv(100)))
    except PermissionError:
        print("refused")
"""


@pytest.mark.local
@pytest.mark.parametrize("make", [local.make_sandbox, make_sandbox], ids=["local", "apptainer"])
async def test_ping_works_without_raw_sockets_which_root_is_refused_too(tmp_path: Path, make: Any) -> None:
    async with running(make(tmp_path)) as sandbox:
        for user in ("root", "dev"):
            done = await sandbox.exec(f"python3 -c '{PING}'", user=user)
            assert done.stdout == "answered 8\nrefused\n", (user, done)


async def test_the_machines_network_gives_no_raw_sockets(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, network_policy=PUBLIC)) as sandbox:
        for looks in (("readlink", "/proc/self/ns/net"), ("cat", "/etc/resolv.conf")):
            seen = subprocess.run(looks, capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221  # at once
            assert await output(sandbox, " ".join(looks)) == seen.rstrip("\n")
        assert "answered" not in (await output(sandbox, f"python3 -c '{PING}'")).splitlines()[1]


@pytest.mark.local
async def test_an_allowlist_is_a_network_of_its_own_without_an_option_for_it(tmp_path: Path) -> None:
    """What it keeps out is tested on local sandboxes, whose network it is."""
    policy = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["example.com", own_address()])
    async with greeting() as port, running(make_sandbox(tmp_path, network_policy=policy, private_network=True)) as made:
        assert (await output(made, "getent hosts example.com")).startswith(("198.18.", "198.19."))
        assert (await made.exec("getent hosts example.org")).return_code == 2
        talk = f"timeout 20 bash -c 'exec 3<>/dev/tcp/{own_address()}/{port} && cat <&3'"
        assert await output(made, talk) == "hello"
        assert "refused" in await output(made, "! bash -c ': </dev/tcp/203.0.113.9/80' 2>&1")
        await made.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
        assert (await made.exec(talk)).return_code != 0


@pytest.mark.local
async def test_a_network_of_its_own_can_be_switched(tmp_path: Path) -> None:
    sandbox = make_sandbox(tmp_path, network="task", network_policy=PUBLIC)
    async with running(sandbox):
        assert sandbox.capabilities.dynamic_network_policy
        devices = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
        assert (await output(sandbox, devices)).split() == ["lo", "tap0"]
        await sandbox.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
        assert (await output(sandbox, devices)).split() == ["lo"]
