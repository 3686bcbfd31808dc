"""Whole tasks with a Compose file, each played by Harbor's own trial on Docker and on the local sandbox."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, override

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.docker import engine
from harbor_gym.sandboxes.docker.environment import DockerEnvironment
from tests.helpers.compose_projects import PROJECTS
from tests.helpers.compose_projects.failing import REFUSED, REFUSED_COMPOSE
from tests.helpers.compose_projects.project import EXTRA, Project, write_project
from tests.helpers.harbor_trials import PlainAgent
from tests.integration.local.test_compose_as_docker import shown

pytestmark = [
    pytest.mark.local,
    pytest.mark.compose,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
]

AT_ONCE = 3


class LookingAgent(PlainAgent):
    """Runs a project's commands in its services, and keeps what they print and what became of the services."""

    def __init__(
        self,
        *args: Any,
        solve: str,
        ends: Sequence[str],
        looks: Mapping[str, str],
        services: Sequence[str],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._solve, self._ends, self._looks, self._services = solve, ends, looks, services

    @staticmethod
    @override
    def name() -> str:
        return "looking"

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        done = await environment.exec(self._solve)
        while "running" in (await states_of(environment, self._ends)).values():  # noqa: ASYNC110  # Docker sends no event
            await asyncio.sleep(0.2)
        states = await states_of(environment, self._services)
        cases = {
            (where.rpartition("@")[2], where.rpartition("@")[0]): {where: command}
            for where, command in self._looks.items()
            if states.get(where.rpartition("@")[2]) == "running"
        }
        context.metadata = {"solve": done.return_code, "states": states, **await shown(environment, cases)}


async def states_of(environment: BaseEnvironment, services: Sequence[str]) -> dict[str, str]:
    """Return of each service that it runs, or the status with which it has ended, or that there is none."""
    if isinstance(environment, DockerEnvironment):
        listed = await environment._run_docker_compose_command(["ps", "--all", "--format", "json"])  # pyright: ignore[reportPrivateUsage]  # nothing public says it
        found = [json.loads(line) for line in (listed.stdout or "").splitlines() if line.startswith("{")]
        states = {
            row["Service"]: "running" if row["State"] == "running" else f"status {row['ExitCode']}" for row in found
        }
        return {name: states.get(name, "none") for name in services}
    states = {}
    for name in services:
        try:
            await environment.service_exec("true", service=name)
            states[name] = "running"
        except Exception as exc:
            ended = re.search(r"status \d+", str(exc))
            states[name] = ended[0] if ended else "none"
    return states


async def played(task_dir: Path, project: Project, sandbox: str) -> dict[str, Any]:
    """Play a project's task; return all that is compared, or why it did not start."""
    environment, trials_dir = task_dir / "environment", task_dir.parent / "trials"
    services = {"main", *engine.own_services([environment / "docker-compose.yaml"])["services"]}
    services.update(where.rpartition("@")[2] for where in project.looks)
    agent: dict[str, Any] = {
        "solve": project.solve, "ends": project.ends, "looks": dict(project.looks), "services": sorted(services)
    }  # fmt: skip
    extra = [environment / EXTRA] if EXTRA in project.files else []
    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=trials_dir,
        agent=AgentConfig(import_path=f"{__name__}:LookingAgent", kwargs=agent),
        environment=environment_config(sandbox).model_copy(update={"extra_docker_compose": extra}),
    )
    result = await (await Trial.create(config)).run()
    if (failure := result.exception_info) is not None:
        return {"failure": f"{failure.exception_type}: {failure.exception_message}"}
    assert result.agent_result is not None
    assert result.verifier_result is not None
    logs = {path.stem: path.read_text() for path in sorted(trials_dir.glob("*/services/*.log"))}
    return {
        **(result.agent_result.metadata or {}),
        "rewards": result.verifier_result.rewards,
        # Docker reads standard output and error one beside the other, in any order.
        "output": {name: sorted(text.splitlines()) for name, text in logs.items() if text},
    }


def differences(project: Project, local: dict[str, Any], docker: dict[str, Any]) -> list[str]:
    """Return what is not as it should be: the same, or the failures that the project names."""
    wrong: list[str] = []
    for sandbox, found, failure in (("local", local, project.local), ("docker", docker, project.docker)):
        said = found.get("failure", "")
        if bool(said) is not bool(failure) or not re.search(failure, said, re.DOTALL):
            wrong.append(f"{sandbox} says {said[-2000:]!r}, not {failure!r}")
    if not project.local and not project.docker:
        wrong += [
            f"{name}: {local.get(name)!r}, on Docker {docker.get(name)!r}"
            for name in sorted({*local, *docker} - {"failure"})
            if local.get(name) != docker.get(name)
        ]
    return wrong


async def compared(folder: Path, name: str, project: Project) -> list[str]:
    """Play a project's task in both sandboxes; return the differences."""
    found = [
        await played(write_project(folder / sandbox / "task", project), project, sandbox)
        for sandbox in ("local", "docker")
    ]
    return [f"{name}: {difference}" for difference in differences(project, *found)]


@pytest.mark.parametrize("group", PROJECTS)
async def test_projects_are_as_with_docker(group: str, tmp_path: Path) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, name: str, project: Project) -> list[str]:
        async with slots:
            return await compared(tmp_path / f"{group}-{number}", name, project)

    async with asyncio.TaskGroup() as tasks:
        parts = [tasks.create_task(one(number, *item)) for number, item in enumerate(PROJECTS[group].items())]
    wrong = [difference for part in parts for difference in part.result()]
    assert not wrong, "\n".join(wrong)


async def test_what_is_not_supported_is_refused_by_name_before_anything_starts(tmp_path: Path) -> None:
    wrong: list[str] = []
    for number, (what, key) in enumerate(REFUSED.items()):
        project = Project(compose=REFUSED_COMPOSE.replace("KEY", key))
        found = await played(write_project(tmp_path / str(number) / "task", project), project, "local")
        said = found.get("failure", "")
        if not re.match(rf"TaskUnsupportedError: docker-compose.yaml: service 'bad': {re.escape(what)}", said):
            wrong.append(f"{what}: {said or found}")
    assert not wrong, "\n".join(wrong)
