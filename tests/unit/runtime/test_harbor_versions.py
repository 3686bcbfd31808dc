"""Harbor's calls of our sandbox classes, by its version."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import TaskConfig as TaskFile
from harbor.models.trial.config import EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import ExceptionInfo
from harbor.trial.trial import Trial

from harbor_gym._runtime.harbor_versions import (
    ENDS_OF_AGENTS,
    NON_ZERO_EXIT,
    REFUSED_AGENT,
    VERSION,
    is_end_of_agent,
    resource_capabilities,
)
from harbor_gym._runtime.loggers import forget_loggers
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.episode.failures import VERIFIER_HINTS
from harbor_gym.episode.task import load_task
from harbor_gym.errors import TaskUnsupportedError, UsageError
from harbor_gym.sandboxes import environment_config, registry
from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.docker.environment import DockerEnvironment
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.types import ActionFormat
from tests.helpers.sandboxes.local import DOCKERFILE, make
from tests.helpers.tasks import write_task

RECORDED = (
    *("harbor.agents.installed.base", "harbor.llms.base", "harbor.trial.errors", "harbor.verifier.verifier"),
    "harbor.environments.base",
)
"""The modules whose exceptions trials record, beside litellm's."""

OTHERS = ("HealthcheckError", "EnvironmentStartTimeoutError")

typed_options = pytest.mark.skipif(VERSION < (0, 26), reason="Harbor reads options from a model since 0.26")


@typed_options
@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (LocalEnvironment, {"max_processes", "network", "private_network", "rootfs", "setup_command", "workdir"}),
        (ApptainerEnvironment, {"image_cache_dir", "overlay", "network", "setup_command", "build_dockerfile"}),
        (DockerEnvironment, {"setup_command", "build_dockerfile", "keep_containers"}),
    ],
)
def test_harbor_prints_the_options_of_a_sandbox_with_their_descriptions(kind: Any, own: set[str]) -> None:
    fields = kind.options_schema()["properties"]
    assert own <= set(fields)
    assert all(fields[name].get("description") for name in own - {"keep_containers"})


@typed_options
@pytest.mark.parametrize("sandbox", ["local", "docker", "apptainer"])
def test_harbor_takes_the_options_that_a_sandbox_has_and_refuses_others(sandbox: str) -> None:
    config = environment_config(sandbox, options={"setup_command": "true"})
    kind: Any = EnvironmentFactory
    kind.validate_options(config)
    config.kwargs["colour"] = "red"
    with pytest.raises(ValueError, match="Unknown option 'colour'"):
        kind.validate_options(config)


@typed_options
def test_a_wrong_option_is_refused_before_anything_starts() -> None:
    config = EnvironmentConfig(import_path=environment_config("local").import_path, kwargs={"network": "all"})
    with pytest.raises(UsageError, match="network: Input should be 'task', 'none' or 'machine'"):
        registry.preflight(config)


@pytest.mark.skipif(VERSION < (0, 25), reason="Harbor has fractions of a CPU since 0.25")
@pytest.mark.parametrize("kind", [ApptainerEnvironment, LocalEnvironment])
def test_a_fraction_of_a_cpu_is_taken(kind: type[ApptainerEnvironment | LocalEnvironment], tmp_path: Path) -> None:
    assert resource_capabilities().model_dump()["fractional_cpus"]
    assert make(kind, tmp_path, DOCKERFILE, config={"cpus": 0.5}).task_env_config.cpus == 0.5


MCP_SERVER = '[[environment.mcp_servers]]\nname = "search"\ntransport = "streamable-http"\nurl = "http://mcp/mcp"\n'


@pytest.mark.skipif(VERSION < (0, 26), reason="MCP servers have headers since Harbor 0.26")
async def test_a_task_whose_mcp_server_needs_credentials_is_refused_by_our_loop(tmp_path: Path) -> None:
    task = write_task(tmp_path / "open", toml=MCP_SERVER)
    assert await load_task(task, TerminalEnvConfig(task_dir=task))
    task = write_task(tmp_path / "task", toml=f'{MCP_SERVER}headers = {{ Authorization = "Bearer ${{KEY}}" }}\n')
    assert await load_task(task)
    assert await load_task(task, TerminalEnvConfig(task_dir=task, action_format=ActionFormat.BASH_TOOL))
    with pytest.raises(TaskUnsupportedError, match="the MCP server search need headers"):
        await load_task(task, TerminalEnvConfig(task_dir=task))


@pytest.mark.parametrize("target", ["/data", "/logs/agent", "/logs/mine"])
@pytest.mark.parametrize("kind", [ApptainerEnvironment, LocalEnvironment])
def test_a_users_mount_is_refused_by_name_also_in_place_of_a_log_folder(
    kind: type[ApptainerEnvironment | LocalEnvironment], target: str, tmp_path: Path
) -> None:
    own, asked = ({"type": "bind", "source": str(tmp_path / name), "target": target} for name in ("trial/x", "x"))
    assert make(kind, tmp_path, DOCKERFILE, mounts=[own])
    with pytest.raises(TaskUnsupportedError, match=rf"mount nothing of the host \(asked for: {target}\): use --env d"):
        make(kind, tmp_path, DOCKERFILE, mounts=[own, asked])


@typed_options
@pytest.mark.parametrize("kind", [ApptainerEnvironment, DockerEnvironment, LocalEnvironment])
def test_who_asks_that_log_folders_are_mounted_is_told(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not support automatic host mounts"):
        make(kind, tmp_path, DOCKERFILE, auto_mounting=True)


async def test_a_compose_file_is_told_where_the_log_folders_are(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "environment/docker-compose.yaml").write_text("services: {main: {}}\n")
    trials, environment = tmp_path / "trials", environment_config("docker")
    trial = await Trial.create(TrialConfig(task=TaskConfig(path=task), trials_dir=trials, environment=environment))
    sandbox: Any = trial.agent_environment
    sandbox._share_logs()
    with sandbox._logs_dir as shared:
        told = {name: value for name, value in sandbox._compose_infra_env_vars().items() if name.startswith("HOST_")}
        assert {"HOST_VERIFIER_LOGS_PATH", "HOST_AGENT_LOGS_PATH"} <= told.keys()
        assert {Path(folder).parent for folder in told.values()} == {Path(shared)}
    forget_loggers(trial.logger)


@pytest.mark.parametrize("name", [*ENDS_OF_AGENTS, *REFUSED_AGENT, *VERIFIER_HINTS, *OTHERS])
def test_an_exception_that_we_know_by_name_is_one_of_harbor_or_of_its_model_client(name: str) -> None:
    """Trials record names: one that Harbor gave up would make its row of the table a dead one."""
    litellm = importlib.util.find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    of_litellm = (Path(litellm.origin).parent / "exceptions.py").read_text(encoding="utf-8")  # its import takes seconds
    modules = map(importlib.import_module, RECORDED)
    assert f"class {name}(" in of_litellm or any(issubclass(getattr(it, name, int), Exception) for it in modules)


@pytest.mark.skipif(VERSION < (0, 25), reason="Harbor has a policy for each exception since 0.25")
def test_every_exception_beside_which_harbor_counts_no_reward_denies_ours() -> None:
    policies = importlib.import_module("harbor.models.trial.error_policy").ERROR_POLICIES
    valid = "has_valid_reward" if VERSION >= (0, 26) else "reward_valid"
    counting = {name for name, policy in policies.items() if getattr(policy, valid)}
    ours = {name for name in policies if is_end_of_agent(ExceptionInfo.from_exception(type(name, (Exception,), {})()))}
    # 0.25 calls a non-zero exit unclassified, 0.26 an end of the agent's own: ours counts on each, see denied_verdict.
    assert ours == counting | {NON_ZERO_EXIT}


def test_no_field_of_a_task_asks_for_a_simulated_user() -> None:
    """It is a setting of ``harbor run``, and none of ours: no task is played without one that it needs."""
    schema = json.dumps(TaskFile.model_json_schema()).lower()
    assert "user_agent" not in schema
    assert "persona" not in schema
    assert "user_agent" in json.dumps(TrialConfig.model_json_schema())
