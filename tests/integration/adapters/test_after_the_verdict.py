"""What follows a verdict is cleaning up: it is reported, and the verdict counts."""

from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.sandboxes.docker.engine import docker
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.sandboxes.local import make_env
from tests.helpers.tasks import BASE, DONE, write_task
from tests.integration.adapters.test_guarded_grading import DOORS, play

pytestmark = [pytest.mark.usefixtures("nothing_left")]

FAILING = "tests.helpers.sandboxes.failing"
SWITCHES = '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n'


@pytest.mark.local
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["Unremovable", "StuckNetwork"])
async def test_a_sandbox_that_does_not_end_well_leaves_its_verdict(
    door: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = write_task(tmp_path / "task", toml=SWITCHES if kind == "StuckNetwork" else "")
    rollout = await play(door, task, DONE, sandbox=f"{FAILING}:{kind}")
    assert (rollout.reward, rollout.error) == (1.0, None)
    assert any("could not be removed" in line or "keeps its verifier's network" in line for line in caplog.messages)


@pytest.mark.local
async def test_a_network_that_can_not_be_switched_back_ends_the_next_step(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml=f'{SWITCHES}[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    for name in ("one", "two"):
        (task / "steps" / name).mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text("Do it.\n")
    rollout = await play("own loop", task, DONE, sandbox=f"{FAILING}:StuckNetwork")
    assert rollout.error is not None


@pytest.mark.local
async def test_a_trial_that_can_not_write_its_result_leaves_the_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_env(write_task(tmp_path / "task"), trials_dir=tmp_path / "trials") as env:
        await env.reset()
        (trial,) = (tmp_path / "trials").iterdir()
        (trial / "result.json").mkdir()  # where Harbor will write
        assert await solved(env) == 1.0
    assert any("after the verdict" in line for line in caplog.messages)


async def solved(env: AsyncTerminalGymEnv) -> float:
    await env.step([(DONE, 30.0)])
    return (await env.step(COMPLETE)).reward


COMPOSE = "services:\n  other:\n    image: {base}\n    command: sleep infinity\n"


@pytest.mark.docker
@pytest.mark.slow
async def test_on_docker_what_can_not_be_removed_leaves_the_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = write_task(tmp_path / "guarded")
    (task / "environment" / "docker-compose.yaml").write_text(COMPOSE.format(base=BASE))
    env = make_env(task, sandbox="docker")
    await env.reset()
    _, output = await docker("network", "ls", "--format", "{{.Name}}", "--filter", "name=guarded__")
    (network,) = output.split()
    # A guest that is not the project's own keeps the network in use.
    await docker("run", "--detach", "--init", "--network", network, "--name", f"{network}-guest", BASE, "sleep", "99")
    try:
        with pytest.warns(ResourceWarning, match="could not be removed"):
            assert await solved(env) == 1.0
        await env.close()
    finally:
        await docker("rm", "--force", f"{network}-guest")
        await docker("network", "rm", network)
    assert any("could not be removed" in line for line in caplog.messages)
