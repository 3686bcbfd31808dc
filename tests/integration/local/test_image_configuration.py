"""What an image's configuration means in a local sandbox, and what its task declares of it."""

from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import TaskError
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


async def test_the_healthcheck_is_awaited_as_the_images_user(tmp_path: Path) -> None:
    dockerfile = (
        f'FROM {BASE}\nSHELL ["/bin/bash", "-c"]\nUSER nobody\nWORKDIR /tmp\n'
        "HEALTHCHECK --interval=100ms --retries=50 "
        "CMD id -un >who; pwd >where; date >>tries; [[ $(wc -l <tries) > 2 ]]\n"
    )
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile)) as sandbox:
        assert await output(sandbox, "cat who where; wc -l <tries") == "nobody\n/tmp\n3"


async def test_an_unhealthy_image_is_the_tasks_fault(tmp_path: Path) -> None:
    dockerfile = f"FROM {BASE}\nHEALTHCHECK --interval=100ms --retries=2 CMD echo no licence; exit 7\n"
    with pytest.raises(TaskError, match=r"unhealthy.*failed 2 times.*status 7: no licence"):
        await make_sandbox(tmp_path, dockerfile=dockerfile).start(force_build=False)


async def test_workdirs_and_volumes_are_as_docker_makes_them(tmp_path: Path) -> None:
    dockerfile = (
        f"FROM {BASE}\nVOLUME /volume /other\nRUN mkdir /volume && echo x >/volume/x\nUSER nobody\nWORKDIR /a/b\n"
    )
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile)) as sandbox:
        assert await output(sandbox, "pwd; stat -c %U . .. /other; cat /volume/x") == "/a/b\nnobody\nnobody\nroot\nx"


async def test_an_id_that_a_sandbox_has_not_is_the_tasks_fault(tmp_path: Path) -> None:
    files = f"FROM {BASE}\nRUN touch /high && chown 197609 /high\n"
    with pytest.raises(TaskError, match="ids up to 197609"):
        await make_sandbox(tmp_path / "files", dockerfile=files).start(force_build=False)
    user = f"FROM {BASE}\nUSER 100001\n"
    with pytest.raises(TaskError, match="ids up to 100001"):
        await make_sandbox(tmp_path / "user", dockerfile=user).start(force_build=False)


async def test_a_workdir_or_a_user_that_the_image_lacks_is_the_tasks_fault(tmp_path: Path) -> None:
    for number, (toml, expected) in enumerate(
        (
            ('[environment]\nworkdir = "/srv/none"\n', r"workdir = '/srv/none' is no directory"),
            ('[agent]\nuser = "nobody-such"\n', r"user = 'nobody-such' has no account"),
        )
    ):
        task = write_task(tmp_path / str(number), toml=toml)
        with pytest.raises(TaskError, match=expected):
            async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task, sandbox="local")) as env:
                await env.reset()
