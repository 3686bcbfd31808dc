"""The taskset: Harbor tasks of every source, each with the same key on every machine."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.helpers.tasks import write_task

pytestmark = pytest.mark.verifiers


def commit_tasks(repository: Path) -> str:
    """Make a repository of what is there; return its commit."""
    who = {f"GIT_{role}_{part}": "t@example.com" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    words = (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", "tasks"], ["rev-parse", "HEAD"])
    done = [
        subprocess.run(["git", "-C", repository, *item], env=environment, check=True, capture_output=True, text=True)
        for item in words
    ]
    return done[-1].stdout.strip()


def test_directories_git_and_a_registry_are_one_taskset(tmp_path: Path) -> None:
    from harbor_gym.adapters.verifiers import HarborTasksetConfig, HarborTerminalTaskset

    local = write_task(tmp_path / "local", instruction="The local one.\n")
    write_task(tmp_path / "repository/tasks/fetched", instruction="The fetched one.\n")
    listed = write_task(tmp_path / "listed")
    commit = commit_tasks(tmp_path / "repository")
    dataset = {"name": "org/small", "version": "1.0", "description": "d", "tasks": [{"name": "l", "path": str(listed)}]}
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps([dataset]))
    sources = [str(local), f"git+file://{tmp_path / 'repository'}@{commit}#tasks", "org/small@1.0"]
    config = HarborTasksetConfig(tasks=sources, registry_path=registry, download_dir=tmp_path / "cache")
    tasks = list(HarborTerminalTaskset(config))
    assert [task.data.name for task in tasks] == ["local", "fetched", "listed"]
    assert [task.data.source for task in tasks] == sources
    assert [task.data.commit for task in tasks] == [None, commit, None]
    assert [task.data.prompt for task in tasks[:2]] == ["The local one.\n", "The fetched one.\n"]
    assert all(Path(task.data.task_dir, "task.toml").is_file() for task in tasks)
    assert [task.key for task in tasks] == [f"{task.data.name}@{task.data.digest}" for task in tasks]
    (again,) = HarborTerminalTaskset(HarborTasksetConfig(tasks=[tasks[1].data.task_dir]))
    assert again.key == tasks[1].key, "wherever it lies"


def test_a_taskset_without_a_source_is_refused() -> None:
    from harbor_gym.adapters.verifiers import HarborTasksetConfig, HarborTerminalTaskset

    with pytest.raises(ValueError, match=r"give env\.taskset\.tasks"):
        list(HarborTerminalTaskset(HarborTasksetConfig()))
