"""A local sandbox's services to its caller beyond the contract of all sandboxes (test_check_sandbox.py)."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from harbor.models.trial.config import ServiceVolumeConfig

from harbor_gym.errors import SandboxError, SandboxLostError, SandboxStartError, SandboxTimeoutError, TaskError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor.forkserver_client import end_forkserver, forkserver_pid
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import DOCKERFILE, make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


# --- exec ------------------------------------------------------------------------------------------------------------


async def test_nothing_of_the_hosts_environment_reaches_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    async with running(make_sandbox(tmp_path)) as sandbox:
        assert "hunter2" not in await output(sandbox, "env; cat /proc/*/environ 2>/dev/null; true")


async def test_a_directory_or_user_that_is_not_there_is_a_clear_error(sandbox: LocalEnvironment) -> None:
    with pytest.raises(SandboxError, match="'/nowhere'"):
        await sandbox.exec("true", cwd="/nowhere")
    with pytest.raises(SandboxError, match="user 'nobody-here'"):
        await sandbox.exec("true", user="nobody-here")


USERS = {
    "dev": "1234 1234 1234 4321 /home/dev",
    1234: "1234 1234 1234 4321 /home/dev",
    "1234:4321": "1234 4321 4321 /home/dev",
    "dev:crew": "1234 4321 4321 /home/dev",
    777: "777 0 0 /",
    "root": "0 0 0 /root",
    None: "0 0 0 /root",
}


async def test_users_are_the_sandboxs_own(sandbox: LocalEnvironment) -> None:
    ask = "echo $(id -u) $(id -g) $(id -G) $HOME"
    assert {user: await output(sandbox, ask, user=user) for user in USERS} == USERS


async def test_the_images_user_is_the_default_until_a_default_user_is_set(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=f"{DOCKERFILE}USER dev\n")) as sandbox:
        assert await output(sandbox, "id -un") == "dev"
        with sandbox.with_default_user("root"):
            assert await output(sandbox, "id -un") == "root"
            assert await output(sandbox, "id -un", user="dev") == "dev"


async def test_root_can_do_what_tasks_ask_of_root(sandbox: LocalEnvironment) -> None:
    await output(sandbox, "useradd --create-home eve && su eve -c 'touch ~/mine' && chown dev /home/eve/mine")
    assert await output(sandbox, "stat -c %U /home/eve/mine; chmod 4755 /bin/true; kill -0 1 && echo ok") == "dev\nok"


async def test_a_timeout_kills_the_whole_group_and_nothing_else(sandbox: LocalEnvironment) -> None:
    await sandbox.exec("sleep 1000 >/dev/null 2>&1 &")
    with pytest.raises(SandboxTimeoutError, match="timed out after 1 seconds") as caught:
        await sandbox.exec("sleep 2000 & sleep 3000", timeout_sec=1)
    assert isinstance(caught.value, RuntimeError)
    # A killed process is there until it next has a processor.
    await output(sandbox, "while pgrep -x -f 'sleep [23]000' >/dev/null; do sleep 0.05; done")
    assert await output(sandbox, "ps -eo args | grep '^sleep'") == "sleep 1000"


async def test_output_reaches_a_callback_as_it_comes(sandbox: LocalEnvironment) -> None:
    chunks: list[tuple[str, str]] = []

    async def collect(text: str, stream: str) -> None:
        chunks.append((stream, text))

    with sandbox.scoped_output_callback(collect):
        await sandbox.exec("echo one; echo two >&2")
    assert sorted(chunks) == [("stderr", "two\n"), ("stdout", "one\n")]


async def test_exec_argv_starts_a_process_with_the_callers_pipes(sandbox: LocalEnvironment) -> None:
    argv = sandbox.exec_argv(
        'read -r line; echo "$line $WHO $(id -un) $PWD"; exit 7', cwd="/tmp", env={"WHO": "me"}, user="dev"
    )
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    printed, _ = await process.communicate(b"hi\n")
    assert (printed, process.returncode) == (b"hi me dev /tmp\n", 7)


async def test_an_exec_argv_process_ends_with_its_starter_and_with_the_sandbox(sandbox: LocalEnvironment) -> None:
    argv = sandbox.exec_argv("echo up; exec sleep 1234")
    for is_sandbox_end in (False, True):
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
        if is_sandbox_end:
            await sandbox.stop(delete=True)
        else:
            process.kill()
        await process.wait()
        if not is_sandbox_end:
            await output(sandbox, "while pgrep -x sleep >/dev/null; do :; done", timeout_sec=PATIENCE_SEC)
    late = await asyncio.create_subprocess_exec(*argv, stderr=subprocess.PIPE)
    _, printed = await late.communicate()
    assert (late.returncode, printed) == (125, b"harbor_gym: the sandbox is gone\n")


# --- files -----------------------------------------------------------------------------------------------------------


async def test_directories_make_the_round_trip_with_links_modes_and_empty_folders(
    sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "deep" / "run.sh").chmod(0o755)
    (source / "bytes").write_bytes(os.urandom(3_000_000))
    (source / "link").symlink_to("deep/run.sh")
    await sandbox.upload_dir(source, "/some/new place")
    assert await output(sandbox, "./link; stat -c %U:%G bytes", cwd="/some/new place") == "ran\nroot:root"
    await sandbox.download_dir("/some/new place", back)
    assert (back / "bytes").read_bytes() == (source / "bytes").read_bytes()
    assert (back / "deep" / "empty").is_dir()
    assert os.access(back / "deep" / "run.sh", os.X_OK)
    assert (back / "link").readlink() == Path("deep/run.sh")


async def test_files_make_the_round_trip_into_names_and_into_directories(
    sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    source = tmp_path / "-odd name"
    source.write_bytes(b"\x00\xff" * 100_000)
    source.chmod(0o750)
    await sandbox.upload_file(source, "/new/place/file")
    await sandbox.upload_file(source, "/tmp")
    assert await output(sandbox, "stat -c %a /new/place/file; cmp /new/place/file '/tmp/-odd name'") == "750"
    await sandbox.download_file("/new/place/file", tmp_path / "fetched" / "file")
    assert (tmp_path / "fetched" / "file").read_bytes() == source.read_bytes()


async def test_a_download_that_never_ends_is_cut(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, config={"storage_mb": 64})) as sandbox:
        await sandbox.exec("truncate -s 10G /huge && mkdir /folder && mkfifo /folder/pipe && echo kept > /folder/file")
        with pytest.raises(SandboxError, match="larger than 256 MiB"):
            await sandbox.download_file("/huge", tmp_path / "huge")
        assert not (tmp_path / "huge").exists()
        await sandbox.download_dir("/folder", tmp_path / "folder")
        assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["file"]


# --- life ------------------------------------------------------------------------------------------------------------


async def test_a_start_cancelled_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)):
        """The image is in the cache now."""
    for delay_ms in range(0, 120, 8):
        sandbox = make_sandbox(tmp_path)
        task = asyncio.ensure_future(sandbox.start(force_build=False))
        await asyncio.sleep(delay_ms / 1000)
        task.cancel()
        await asyncio.wait([task])
        await sandbox.stop(delete=True)


async def test_eight_at_once_share_one_image_and_nothing_else(tmp_path: Path) -> None:
    sandboxes = [make_sandbox(tmp_path) for _ in range(8)]
    try:
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(sandbox.start(force_build=False))
        for number, sandbox in enumerate(sandboxes):
            await output(sandbox, f"echo {number} > /tmp/mine; rm -rf /usr/share")
        printed = [await output(sandbox, "cat /tmp/mine; ls /tmp") for sandbox in sandboxes]
        assert printed == [f"{number}\nmine" for number in range(8)]
    finally:
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(sandbox.stop(delete=True))
    async with running(make_sandbox(tmp_path)) as fresh:
        await output(fresh, "test -d /usr/share && test ! -e /tmp/mine")


async def test_a_sandbox_whose_first_process_is_killed_is_lost(sandbox: LocalEnvironment) -> None:
    argv = sandbox.exec_argv("true")
    init = argv[-1].partition('"init": ')[2].partition(",")[0]
    os.kill(int(init), 9)
    with pytest.raises(SandboxLostError):
        await sandbox.exec("sleep 100")


async def test_log_directories_are_there_and_writable_for_all(tmp_path: Path) -> None:
    mounts = [ServiceVolumeConfig(type="bind", source=str(tmp_path / "trial"), target="/logs/verifier")]
    async with running(make_sandbox(tmp_path, mounts=mounts)) as sandbox:
        await output(sandbox, "touch /logs/verifier/reward.txt /tmp/x", user="dev")
        assert not (tmp_path / "trial/reward.txt").exists()


async def test_a_prebuilt_image_gets_the_loose_environment_files(tmp_path: Path) -> None:
    sandbox = make_sandbox(tmp_path, config={"docker_image": "debian:bookworm-slim", "workdir": "/srv"})
    (sandbox.environment_dir / "Dockerfile").unlink()
    (sandbox.environment_dir / "data.txt").write_text("data")
    async with running(sandbox):
        assert await output(sandbox, "cat data.txt") == "data"


async def test_nobody_returns_from_a_stop_before_the_sandbox_is_gone(tmp_path: Path) -> None:
    stopped = make_sandbox(tmp_path)
    await stopped.start(force_build=False)
    (supervisor,) = _supervisors()
    cancelled = asyncio.create_task(stopped.stop(delete=True))
    await asyncio.sleep(0)
    cancelled.cancel()
    await stopped.stop(delete=True)  # a second one, while the first is at it
    assert _has_exited(supervisor)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await stopped.stop(delete=True)


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_host_mounts_are_refused(tmp_path: Path) -> None:
    mounts = [ServiceVolumeConfig(type="bind", source="/etc", target="/host-etc")]
    with pytest.raises(TaskError, match="/host-etc"):
        make_sandbox(tmp_path, mounts=mounts)


async def test_an_image_without_bash_runs_sh_and_one_without_a_shell_reports_it(tmp_path: Path) -> None:
    no_bash = f"{DOCKERFILE}RUN rm /bin/bash\n"
    async with running(make_sandbox(tmp_path / "sh", dockerfile=no_bash)) as sandbox:
        assert await output(sandbox, 'echo "[$BASH_VERSION]"') == "[]"
    no_shell = "FROM debian:bookworm-slim AS full\nFROM scratch\nCOPY --from=full /etc/passwd /etc/passwd\n"
    with pytest.raises(SandboxStartError, match="/bin/sh"):
        await make_sandbox(tmp_path / "none", dockerfile=no_shell).start(force_build=False)


# --- the forkserver --------------------------------------------------------------------------------------------------


async def test_sandboxes_live_on_without_what_started_them(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    first = forkserver_pid()
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert await output(sandbox, "echo lives") == "lives"
    async with running(make_sandbox(tmp_path / "other")) as other:
        assert await output(other, "echo another") == "another"
        assert forkserver_pid() not in (0, first)
        end_forkserver()
        assert forkserver_pid() == 0
        assert await output(other, "echo lives") == "lives"


async def test_a_sandbox_holds_no_file_of_another_and_none_of_the_host(
    sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    async with running(make_sandbox(tmp_path / "other")):
        held = [_sockets(pid) for pid in (forkserver_pid(), *_supervisors())]
    # A supervisor has its caller's.
    assert [len(sockets) for sockets in held] == [1, 1, 1]
    assert len(set().union(*held)) == 3


def _supervisors() -> list[int]:
    return [
        int(pid)
        for pid in Path(f"/proc/{forkserver_pid()}/task/{forkserver_pid()}/children")
        .read_text(encoding="utf-8")
        .split()
    ]


def _has_exited(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text(
        encoding="utf-8"
    )  # until its forkserver has waited for it


def _sockets(pid: int) -> set[Path]:
    held = (path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir())
    return {target for target in held if str(target).startswith("socket:")}
