"""Transfers of the fake sandbox run beside its commands."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.sandbox import started_environment
from tests.helpers.sandboxes.fake_episodes import FAKE

FILES = 200


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    """The work of two threads at once is interleaved, on a quiet machine too."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def test_uploads_and_downloads_at_once_leave_each_others_files_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    for number in range(FILES):
        (source / "folder" / f"{number}").write_text(f"{number}")
    (source / "folder" / "0").chmod(0o750)

    async with started_environment(FAKE) as sandbox:
        await sandbox.upload_dir(source, "/srv/first")

        async def up_and_down(name: str) -> None:
            await sandbox.upload_dir(source, f"/srv/{name}")
            await sandbox.download_dir("/srv/first", tmp_path / name)

        await asyncio.gather(*(up_and_down(str(number)) for number in range(8)))
        await sandbox.download_dir_with_exclusions(
            source_dir="/srv", target_dir=tmp_path / "all", exclude=["first", "1*"]
        )

    contents = {f"{number}": f"{number}" for number in range(FILES)}
    for number in range(8):
        folder = tmp_path / str(number) / "folder"
        assert {path.name: path.read_text() for path in folder.iterdir()} == contents
        assert (folder / "0").stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [str(number) for number in (0, *range(2, 8))]
    assert not list((tmp_path / "all" / "0" / "folder").glob("1*"))
    assert len(list((tmp_path / "all" / "0" / "folder").iterdir())) == FILES - 111
