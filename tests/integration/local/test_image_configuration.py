"""An image's configuration in a local sandbox, and the task's own declarations of it."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from harbor_gym.errors import SandboxError, TaskError
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.tasks import BASE

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


async def test_ids_above_65535_are_a_sandboxs_own_as_in_docker(tmp_path: Path) -> None:
    dockerfile = (
        f"FROM {BASE}\nCOPY --chown=70000 one /one\nRUN touch /high && chown 197609:100001 /high && "
        "useradd -m -u 70000 worker\nUSER 100001\n"
    )
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "one").write_text("1")
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile)) as sandbox:
        assert await output(sandbox, "id -u; stat -c %u:%g /one /high") == "100001\n70000:70000\n197609:100001"
        chown = "touch /run/x; chown 131072:589823 /run/x; stat -c %u:%g /run/x; cp -a /high /copy; stat -c %u /copy"
        assert await output(sandbox, chown, user="root") == "131072:589823\n197609"
        assert await output(sandbox, "id -u; touch ~/x; stat -c %U ~/x; echo y >/dev/stdout", user="worker") == (
            "70000\nworker\ny"
        )
        assert await output(sandbox, "id -u", user="197609") == "197609"
        assert await sandbox.is_dir("/home/worker", user="worker")
        argv = sandbox.exec_argv("id -u; echo z >/dev/stdout", user="100001")
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("100001\nz\n", "")
        with pytest.raises(SandboxError, match="id 589824 is none that this sandbox has"):
            await sandbox.exec("true", user="589824")
        await output(sandbox, "true")


async def test_the_high_ids_of_an_image_are_a_sandboxs_own_as_in_docker(tmp_path: Path) -> None:
    """Those of its files, of its accounts and groups, of its USER, and of a set-up's files: above all ranges."""
    dockerfile = (
        f"FROM {BASE}\nRUN touch /high && chown 1000700000:4294967293 /high && "
        "useradd -M -u 2147483647 worker && groupadd -g 700000 crew && usermod -aG crew worker\nUSER 589824:600000\n"
    )
    set_up = "touch /set && chown 2000000000 /set && echo w:x:1234567:0::/:/bin/sh >>/etc/passwd"
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile, setup_command=set_up)) as sandbox:
        assert await output(sandbox, "id -u; id -g; stat -c %u:%g /high /set") == (
            "589824\n600000\n1000700000:4294967293\n2000000000:0"
        )
        assert await output(sandbox, "id -Gn; : >/tmp/x; stat -c %u /tmp/x", user="worker") == "worker crew\n2147483647"
        chown = "chown 1000700000 /srv && cp -a /high /copy && stat -c %u:%g /srv /copy"
        chown += " && setpriv --reuid 1234567 --clear-groups id -u"
        assert await output(sandbox, chown, user="root") == "1000700000:0\n1000700000:4294967293\n1234567"
        with pytest.raises(SandboxError, match="id 589825 is none that this sandbox has"):
            await sandbox.exec("true", user="589825")


async def test_more_high_ids_than_a_sandbox_has_room_for_are_the_tasks_fault(tmp_path: Path) -> None:
    lines = "RUN for id in $(seq 1000001 1000129); do touch /srv/$id && chown $id /srv/$id; done"
    with pytest.raises(TaskError, match=r"129 user or group ids above 589823.*room for 128"):
        await make_sandbox(tmp_path, dockerfile=f"FROM {BASE}\n{lines}\n").start(force_build=False)


async def test_a_set_up_finds_the_workdir_and_the_volumes_of_the_image(tmp_path: Path) -> None:
    dockerfile = f"FROM {BASE}\nVOLUME /volume\nWORKDIR /a/b\n"
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile, setup_command="pwd >/volume/where")) as sandbox:
        assert await output(sandbox, "cat /volume/where") == "/a/b"
