"""What an audit finds in a task's files: every kind in several disguises, and nothing in their twins."""

from pathlib import Path

import pytest

from harbor_gym._runtime.shipped import resolve_shipped, shipped_tasks
from harbor_gym.checking.audit.run import read_task
from harbor_gym.tasks.new import TaskKind, write_task
from tests.helpers.seeded_tasks import SEEDS, TWINS, Files, write_seed


@pytest.mark.parametrize(
    ("kind", "files"),
    [pytest.param(kind, files, id=f"{kind}: {name}") for kind, seeds in SEEDS.items() for name, files in seeds.items()],
)
async def test_a_seeded_defect_is_found(tmp_path: Path, kind: str, files: Files) -> None:
    findings, _ = await read_task(write_seed(tmp_path / "task", files))
    assert kind in {found.kind for found in findings}


@pytest.mark.parametrize("files", TWINS.values(), ids=TWINS)
async def test_a_twin_is_clean(tmp_path: Path, files: Files) -> None:
    findings, _ = await read_task(write_seed(tmp_path / "task", files))
    assert findings == []


async def test_what_is_shipped_is_clean(tmp_path: Path) -> None:
    shipped = [resolve_shipped(f"task:{name}") for name in shipped_tasks()]
    written = [write_task(tmp_path / kind.value, kind) for kind in TaskKind]
    assert {task.name: found for task in (*shipped, *written) if (found := (await read_task(task))[0])} == {}
