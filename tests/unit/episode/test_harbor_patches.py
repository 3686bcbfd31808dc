"""The private parts of Harbor that this package replaces or relies on: an upgrade that changes any must fail here.

A digest that differs is no defect yet. Read Harbor's change, check this package's use of it, run the tests of
docker and of episodes, and write the new digest down.
"""

import ast
import asyncio
import functools
import hashlib
import inspect
import json
import operator
import os
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harbor.environments.docker.docker as harbor_docker
import harbor.models.job.lock as lock
import harbor.trial.artifact_handler as artifacts
import harbor.trial.multi_step as multi_step
import harbor.trial.trial as trial
import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.trial.config import EnvironmentConfig, TaskConfig, TrialConfig
from harbor.verifier.verifier import Verifier

import harbor_gym.sandboxes.docker
from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym._runtime.loggers import forget_loggers
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.episode._harbor_patches import create_trial
from tests.helpers.sandboxes.fake_episodes import FAKE, fake_config

TRIALS = {
    "ArtifactHandler.upload_artifacts": "51d83ecdeb80",
    "BaseEnvironment.empty_dirs": "1a3e418b336a",
    "MultiStepTrial._prepare_step": "6a3d09b78249",
    "MultiStepTrial._recover_outputs": "4fd6b63450f2",
    "MultiStepTrial._reset_agent_logs_for_step": "bdbeaf1ed934",
    "MultiStepTrial._run_step_agent": "933a5c944aa2",
    "MultiStepTrial._run_step_setup": "6fbb330e9f0e",
    "MultiStepTrial._upload_step_workdir": "58708a9101cc",
    "Trial._reset_shared_step_verifier_dirs": "77fa6cc37bb9",
    "Trial._run_separate_verifier": "5a976a8d798e",
    "Trial._separate_verifier_env": "2b9977c4b56b",
    "Trial._start_agent_environment": "4191427a7e5f",
    "Trial._stop_agent_environment": "7d82b2a8373f",
    "Trial._sync_agent_output": "9f9c20c081dd",
    "Trial._upload_injected_skills": "459c7a09f7dc",
    "Verifier.verify": "dc7540224ee7",
}
"""Parts of Harbor's trial that call the methods that an episode replaces (episode/_harbor_patches.py), as in 0.24."""

TRIALS_SINCE = {
    (0, 25): {
        "ArtifactHandler.upload_artifacts": "b53303d551a0",
        "MultiStepTrial._reset_agent_logs_for_step": "3dc9b6e299df",
        "Trial._separate_verifier_env": "a1976e64303c",
        "Verifier.verify": "a3d5d83f9d5d",
    },
    (0, 26): {
        "MultiStepTrial._run_step_agent": "363dc9c067d2",
        "MultiStepTrial._run_step_setup": "259a722369fb",
    },
}

DOCKER = {
    "DockerEnvironment._apply_network_policy": "67d31c49ea65",
    "DockerEnvironment._compose_exec": "708a8b5a97c3",
    "DockerEnvironment._run_docker_compose_command": "89551585d705",
    "DockerEnvironment._wait_until_egress_sidecar_ready": "b956d10fcd83",
    "DockerEnvironment._write_resources_compose_file": "821256feee9b",
    "DockerEnvironment.exec": "765ca4142a36",
    "DockerEnvironment.service_exec": "1c3c74303790",
    "DockerEnvironment.start": "542a1a8201de",
    "DockerEnvironment.stop": "c6bb6ae94e64",
    "DockerEnvironment.stop_service": "ed26dc87541f",
    "_DOCKER_COMPOSE_BUILD_PATH": "a value",
    "_DOCKER_COMPOSE_PREBUILT_PATH": "a value",
    "_EGRESS_CONTROL_KERNEL_PROBE_IMAGE": "a value",
    "_apply_network_policy": "67d31c49ea65",
    "_cleanup_env_compose_file": "384adc90a07f",
    "_cleanup_mounts_compose_file": "4893fb227772",
    "_collect_buffered_output": "d77e21ecf1e9",
    "_compose_exec": "708a8b5a97c3",
    "_detect_daemon_os": "c894fc31ca53",
    "_docker_compose_paths": "e2ea9350eb85",
    "_effective_gpus": "479b4b52535f",
    "_effective_storage_mb": "d32fd9eae286",
    "_egress_control_sidecar_dockerfile_path": "4556bc284968",
    "_enable_egress_control": "a value",
    "_engine_cmd": "35bf3a7e07eb",
    "_ensure_egress_control_sidecar_image_built": "3ca0a4e98c77",
    "_env_compose_temp_dir": "a value",
    "_is_rootless_docker": "ab0533cf6a75",
    "_is_windows_container": "a value",
    "_keep_containers": "a value",
    "_main_image_name": "62f2432b9781",
    "_mounts_compose_temp_dir": "a value",
    "_network_disabled": "69437e9006ae",
    "_output_callback": "9baf61f183a5",
    "_requires_egress_control": "e7e577a3d086",
    "_resource_limit_value": "92d215c36ff1",
    "_resources_compose_temp_dir": "a value",
    "_rootless_docker": "a value",
    "_run_docker_compose_command": "89551585d705",
    "_sanitize_docker_compose_project_name": "8ebd8f9dde81",
    "_startup_env": "4e26247de095",
    "_use_prebuilt": "a value",
    "_user_compose_paths": "dfc60e6f3b57",
    "_validate_daemon_mode": "0b12e09218ce",
    "_validate_image_os": "843132c8a862",
    "_write_env_compose_file": "28db89cdcd68",
    "_write_mounts_compose_file": "8402b6bd2df3",
    "_write_resources_compose_file": "821256feee9b",
}
"""Private parts of Harbor's environment that sandboxes/docker uses, and the callers of Compose: environment.py
matches their arguments, and leaves out calls without an effect. As in 0.24."""

DOCKER_SINCE = {
    (0, 25): {
        "DockerEnvironment.start": "4b69bbca136e",
        "_host_mounts": "a value",
        "_mounts": "a value",
        "_phase_network_policies": "a value",
        "_resource_limit_value": "ff48860b8f2c",
        "_write_mounts_compose_file": "7832b86cf47a",
    },
    (0, 26): {"DockerEnvironment.start": "049e45d9e035"},
}


def of_this_version(first: dict[str, str], since: dict[tuple[int, int], dict[str, str]]) -> dict[str, str]:
    changes = [changed for version, changed in sorted(since.items()) if version <= VERSION]
    return functools.reduce(operator.or_, changes, first)


def digest(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code, without its formatting and documentation."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def functions_of(holder: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, found in vars(holder).items():
        if isinstance(found, property):
            found = found.fget
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if inspect.isfunction(found):
            yield f"{holder.__name__}.{name}", found


def callers(holder: Any, *texts: str) -> dict[str, str]:
    """Return the methods whose source has one of these texts."""
    found = functions_of(holder)
    return {name: digest(f) for name, f in found if any(text in inspect.getsource(f) for text in texts)}


def replaced() -> dict[str, str]:
    """Return the parts of Harbor's trial that call methods replaced by an episode, and those methods."""
    calls = (
        ".empty_dirs(",
        "environment.stop(",
        "env.stop(",
        "environment.start(",
        "environment.exec(",
        "._upload_step_workdir(",
        "._sync_agent_output(",
        "._download_agent_logs(",
    )
    holders = [trial.Trial, multi_step.MultiStepTrial, artifacts.ArtifactHandler]
    found = {name: value for holder in holders for name, value in callers(holder, *calls).items()}
    found |= callers(Verifier, "self._parse_reward_")
    return {**found, "BaseEnvironment.empty_dirs": digest(BaseEnvironment.empty_dirs)}


def private_names() -> set[str]:
    """Return the private names of Harbor's Docker environment that ours uses: called, read or overridden."""
    folder = Path(harbor_gym.sandboxes.docker.__path__[0])
    trees = [ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    source = inspect.getsource(DockerEnvironment) + inspect.getsource(BaseEnvironment)
    theirs = set(dir(DockerEnvironment)) | {name for name in used if f"self.{name} = " in source}
    return {name for name in (used | defined) & theirs if name.startswith("_") and not name.startswith("__")}


def relied_on() -> dict[str, str]:
    """Return those names, with digests of the methods, and the callers of Compose, for their arguments are matched."""
    found: dict[str, str] = {}
    for name in sorted(private_names()):
        kind = inspect.getattr_static(DockerEnvironment, name, None)
        function = getattr(kind, "fget", None) or getattr(kind, "__func__", kind)
        found[name] = digest(function) if inspect.isfunction(function) else "a value"
    sanitize = harbor_docker._sanitize_docker_compose_project_name  # pyright: ignore[reportPrivateUsage]  # as ours
    found["_sanitize_docker_compose_project_name"] = digest(sanitize)
    return {**found, **callers(DockerEnvironment, "_run_docker_compose_command(", "_compose_exec(")}


def test_what_calls_the_replaced_methods_is_as_it_was() -> None:
    assert replaced() == of_this_version(TRIALS, TRIALS_SINCE)


def test_what_the_docker_sandbox_relies_on_is_as_it_was() -> None:
    assert relied_on() == of_this_version(DOCKER, DOCKER_SINCE)


class Walks:
    """What a thread lists and opens in a folder, by Python's audit events."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path | None = folder
        self.seen: list[tuple[str, str]] = []
        self._thread = threading.get_ident()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None or event not in ("open", "os.listdir", "os.scandir"):
            return
        path = arguments[0]
        is_here = threading.get_ident() == self._thread
        if is_here and isinstance(path, str | Path) and Path(path).is_relative_to(self.folder):
            self.seen.append((event, str(path)))


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """A task whose last change is settled."""
    task_dir = fake_config(tmp_path / "task").task_dir
    time.sleep(0.2)
    return task_dir


@pytest.fixture
def trial_config(tmp_path: Path, task_dir: Path) -> TrialConfig:
    """A trial's of that task."""
    environment = EnvironmentConfig(import_path=FAKE)
    return TrialConfig(task=TaskConfig(path=task_dir), trials_dir=tmp_path / "trials", environment=environment)


async def made(config: TrialConfig, task_dir: Path) -> trial.Trial:
    """Make a trial that never runs."""
    created = await create_trial(config, task_dir)
    forget_loggers(created.logger)
    return created


async def test_no_walk_through_a_tasks_files_stops_the_loop(trial_config: TrialConfig, task_dir: Path) -> None:
    walks = Walks(task_dir / "tests")
    try:
        assert (await made(trial_config, task_dir)).task.checksum
    finally:
        walks.folder = None
    assert walks.seen == []


async def test_no_walk_through_many_tests_stops_the_loop_while_they_are_graded(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task")
    for number in range(100):
        (config.task_dir / "tests" / f"{number}").mkdir()
    for number in range(100):
        (config.task_dir / "tests" / f"{number}" / "file").touch()
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        walks = Walks(config.task_dir / "tests" / "99")
        try:
            await env.finish()
        finally:
            walks.folder = None
    assert walks.seen == []


async def digests(config: TrialConfig, task_dir: Path) -> tuple[str, str]:
    """Return the digests of a task in a trial's result and in its lock."""
    trial = await made(config.model_copy(update={"trial_name": uuid.uuid4().hex}), task_dir)
    written = json.loads(trial.paths.lock_path.read_text(encoding="utf-8"))
    return trial.task.checksum, written["task"]["digest"]


async def test_the_digests_of_a_task_are_kept_until_its_files_change(trial_config: TrialConfig, task_dir: Path) -> None:
    script = task_dir / "tests" / "test.sh"
    before = await digests(trial_config, task_dir)
    assert await digests(trial_config, task_dir) == before
    changed = script.stat()
    script.write_bytes(script.read_bytes()[::-1])
    os.utime(script, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    await asyncio.sleep(0.2)
    after = await digests(trial_config, task_dir)
    assert after == await digests(trial_config, task_dir)
    assert all(new != old for new, old in zip(after, before, strict=True))
    fresh = inspect.unwrap(lock.Packager.compute_content_hash)
    assert after[1] == f"sha256:{fresh(task_dir)[0]}"


async def test_a_task_that_leads_out_of_its_directory_is_refused_again(
    trial_config: TrialConfig, task_dir: Path, tmp_path: Path
) -> None:
    await made(trial_config, task_dir)
    (task_dir / "tests" / "out").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="must stay within the task"):
        await made(trial_config, task_dir)
