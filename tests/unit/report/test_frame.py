"""A run's episodes as a table: one row each, and a missing reward that stays missing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason
from harbor_gym.errors import UsageError
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn
from tests.helpers.paths import ROOT
from tests.unit.house.test_cli import run


def write(run: Path, name: str, *, error: str | None = None, reward: float = 1.0) -> None:
    first: EpisodeInfo = {"turn": 1, "parse_error": "no JSON", "metrics": {"time/step_sec": 0.5}}
    last: EpisodeInfo = {
        "turn": 2,
        "parse_error": None,
        "end_reason": EndReason.MAX_TURNS,
        "rewards": {"reward": reward, "speed": 0.25},
        "metrics": {"time/verifier_sec": 2.5},
    }
    turns = [
        Turn("see", "act", first, 0.0, 10, 3, logprobs=(-0.5, -1.0, -1.5)),
        Turn("next", "end", last, reward, 20, 4),
    ]
    path = run / "transcripts" / name
    write_transcript(path, Transcript(turns), labels={"task": "alpha"}, error=error)


def test_a_row_per_episode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pandas")
    from harbor_gym.report import episodes

    write(tmp_path, "train/batch_000002/alpha_0/episode_1.json")
    write(tmp_path, "train/batch_000002/alpha_0/episode_0.json", reward=0.0)
    write(tmp_path, "test/batch_000003/alpha_1/episode_0.json", error="the sandbox went away")
    (tmp_path / "transcripts/train/broken.json").write_text('{"turns": [')
    frame = episodes(str(tmp_path))
    broken = tmp_path / "transcripts/train/broken.json"
    assert caplog.messages == [f"1 of 4 transcripts can't be read and are left out: {broken}"]
    assert list(frame["name"].str[:4]) == ["test", "trai", "trai"]
    assert frame["split"].tolist() == ["test", "train", "train"]
    assert frame["batch"].tolist() == [3, 2, 2]
    assert frame["episode"].tolist() == [0, 0, 1]
    assert frame["reward"].isna().tolist() == [True, False, False]
    assert frame["reward"].tolist()[1:] == [0.0, 1.0]
    assert frame["end_reason"].tolist() == ["infrastructure_error", "max_turns", "max_turns"]
    assert frame["error"].tolist()[0] == "the sandbox went away"
    row = frame.iloc[2]
    assert (row["turns"], row["sampled_tokens"], row["prompt_tokens"], row["parse_errors"]) == (2, 7, 20, 1)
    assert (row["rewards/speed"], row["time/verifier_sec"], row["task"]) == (0.25, 2.5, "alpha")
    means: Any = frame.groupby("split")["reward"].mean()
    assert means["train"] == 0.5


def test_a_row_per_turn(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from harbor_gym.report import turns

    write(tmp_path, "train/batch_000002/alpha_0/episode_1.json")
    frame: Any = turns(tmp_path)
    assert frame["turn"].tolist() == [1, 2]
    assert frame["episode"].tolist() == [1, 1]
    assert frame["action"].tolist() == ["act", "end"]
    assert frame["parse_error"].notna().tolist() == [True, False]
    assert frame["sampled_tokens"].sum() == 7
    assert frame["logprobs"].tolist() == [[-0.5, -1.0, -1.5], None]
    assert frame["time/step_sec"].notna().tolist() == [True, False]


def test_the_tables_as_files_are_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    write(tmp_path, "train/batch_000002/alpha_0/episode_1.json")
    write(tmp_path, "test/batch_000003/alpha_1/episode_0.json", error="the sandbox went away")
    done = run("report", str(tmp_path), "--parquet", str(tmp_path / "tables"))
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name for path in paths] == ["episodes.parquet", "turns.parquet"]
    played, steps = (parquet.read_table(path).to_pylist() for path in paths)
    assert [row["reward"] for row in played] == [None, 1.0]
    assert steps[2]["logprobs"] == [-0.5, -1.0, -1.5]
    refused = run("report", str(tmp_path / "tables"), "--parquet", str(tmp_path / "none"))
    assert refused.returncode != 0
    assert "no transcript" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_the_pages_questions_have_answers(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    write(tmp_path, "train/batch_000002/alpha_0/episode_0.json", reward=0.0)
    write(tmp_path, "train/batch_000002/alpha_0/episode_1.json", error="the sandbox went away")
    page = (ROOT / "docs/guide/evaluation.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0].replace("runs/x", str(tmp_path))
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["never"] == ["alpha"]
    assert found["by_turns"].loc[2].tolist() == [0.0, 1]
    assert found["seconds"].to_dict() == {"time/verifier_sec": 5.0, "time/step_sec": 1.0}
    assert found["cost"] == 14
    assert found["unread"][["turn", "action"]].to_numpy().tolist() == [[1, "act"]] * 2


def test_a_folder_without_transcripts_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from harbor_gym.report import episodes

    with pytest.raises(UsageError, match="no transcript"):
        episodes(tmp_path)


def test_pandas_is_named_when_it_is_missing(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['pandas'] = None\n"
        "from harbor_gym.report import episodes\n"
        "try: episodes('.')\n"
        "except ImportError as exc: print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == 'harbor_gym.report.episodes needs pandas: pip install "harbor-gym[frame]"'
