"""Images that Docker plays or refuses by name: odd entries in place of Harbor's log folders, an impossible USER."""

from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalEnvConfig
from harbor_gym.errors import TaskError
from tests.helpers.engines import require_engine
from tests.helpers.tasks import BASE, DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SANDBOXES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("local", "docker", "apptainer")]
PLACES = {
    "a link to nowhere": "ln -s /nowhere/at/all /logs",
    "a file": "echo a >/logs",
    "a link to itself": "ln -s /logs /logs",
    "a pipe": "mkfifo /logs",
    "a link to a directory": "ln -s /var/log /logs",
    "files and links in it": "mkdir /logs && echo a >/logs/agent && ln -s /no /logs/verifier && mkfifo /logs/artifacts",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_an_image_with_something_in_place_of_logs(sandbox: str, place: str, tmp_path: Path) -> None:
    require_engine(sandbox)
    dockerfile = f"FROM {BASE}\nRUN rm -rf /logs && {PLACES[place]}\nWORKDIR /srv\n"
    task = write_task(tmp_path / "task", dockerfile=dockerfile)
    config = TerminalEnvConfig(task_dir=task, sandbox=sandbox, confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(DONE, 5.0)])
        end = await env.finish()
    assert (end.reward, end.info.get("end_reason")) == (1.0, EndReason.COMPLETED)


@pytest.mark.parametrize("user", ["4294967295", "0:4294967295", "99999999999"])
@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_user_that_no_kernel_has_is_the_tasks_error(sandbox: str, user: str, tmp_path: Path) -> None:
    require_engine(sandbox)
    task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\nWORKDIR /srv\nUSER {user}\n")
    async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task, sandbox=sandbox)) as env:
        with pytest.raises(TaskError, match=r"USER .*range"):
            await env.reset()
