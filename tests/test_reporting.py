"""What a run shows of itself."""

import asyncio
import json
from pathlib import Path

import pytest

from harbor_gym import reporting
from harbor_gym.reporting import live

BATCH = {
    "env/all/reward/total": 0.25,
    "env/all/turns_per_episode": 6.5,
    "time/total": 12.4,
    "env/all/ended/completed": 0.75,
    "env/all/ended/max_turns": 0.25,
    "env/all/ended/max_tokens": 0.0,
}


def write(path: Path, *records: dict[str, float], rest: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + rest)
    return path


def test_only_whole_records_of_batches_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", {"step": 0, **BATCH}, {"step": 0, "test/reward": 1.0}, rest='{"step": 1, "env')
    assert [record["step"] for record in reporting.read_metrics(path)] == [0]
    assert reporting.read_metrics(tmp_path / "absent") == []


def test_a_batch_is_one_line() -> None:
    line = reporting.describe_batch({"step": 2, **BATCH}, total=5)
    assert line == "batch 3/5  reward 0.25  turns 6.5  (completed 75%, max_turns 25%)  12 s"


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", *({"step": step, **BATCH} for step in range(3)))
    reporting.draw_curve(path, tmp_path / "curve.png", title="t")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]


async def test_following_shows_each_new_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SEC", 0.01)
    write(tmp_path / "metrics.jsonl", {"step": 0, **BATCH})
    shown: list[str] = []
    seen = asyncio.Event()

    def show(line: str) -> None:
        shown.append(line)
        seen.set()

    async with reporting.following(tmp_path, total=3, show=show, title="t"):
        await asyncio.sleep(0.05)
        write(tmp_path / "metrics.jsonl", *({"step": step, **BATCH} for step in (0, 1)))
        await seen.wait()
        write(tmp_path / "metrics.jsonl", *({"step": step, **BATCH} for step in (0, 1, 2)))
    assert [line.split()[1] for line in shown] == ["2/3", "3/3"], "a resumed run does not repeat old batches"
    assert (tmp_path / "curve.png").is_file()
