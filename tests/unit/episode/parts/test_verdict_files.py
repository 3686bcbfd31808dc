"""The reader of a verifier's reward files: what it takes as Harbor does, and what it refuses in one line."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.verifier.verifier import RewardFileEmptyError, RewardFileNotFoundError, VerifierOutputParseError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harbor_gym.episode.grading.verdict import read_reward_json, read_reward_text

REFUSALS = (RewardFileEmptyError, RewardFileNotFoundError, VerifierOutputParseError)
READERS = (read_reward_text, read_reward_json)


@pytest.mark.parametrize(
    ("text", "reward"), [("1", 1.0), (" 0.5\n", 0.5), ("-3e2", -300.0), ("1_0", 10.0), ("0" * 5000 + "1", 1.0)]
)
def test_a_number_is_read(text: str, reward: float, tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert read_reward_text(tmp_path / "reward.txt") == {"reward": reward}


@pytest.mark.parametrize("rewards", [{"reward": 1}, {"a": 0.5, "ü": -2}, {"reward": True}, {}])
def test_an_object_of_numbers_is_read(rewards: dict[str, float], tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text(json.dumps(rewards))
    assert read_reward_json(tmp_path / "reward.json") == rewards


def test_a_link_in_the_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "score").write_text("1")
    (tmp_path / "reward.txt").symlink_to("score")
    assert read_reward_text(tmp_path / "reward.txt") == {"reward": 1.0}


KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a directory": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a link out of it": lambda path: path.symlink_to("/etc/hostname"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a hole": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 20 << 30),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_of_its_size_is_refused(
    read: Callable[[Path], dict[str, float | int]], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "reward"
    KINDS[kind](path)
    with pytest.raises(REFUSALS) as refusal:
        read(path)
    assert len(str(refusal.value)) < 400


NUMBERS = st.integers() | st.floats() | st.integers(1, 9).map(lambda digit: int(str(digit) * 400)) | st.booleans()
JSON = st.recursive(
    st.none() | NUMBERS | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=9
)
CONTENTS = st.binary() | JSON.map(lambda value: json.dumps(value).encode()) | NUMBERS.map(lambda n: f"{n}".encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=CONTENTS)
def test_whatever_is_written_is_finite_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "reward"
    path.write_bytes(content)
    for read in READERS:
        rewards, refusal = _read(read, path)
        assert all(math.isfinite(float(value)) for value in rewards.values())
        assert json.dumps(rewards, ensure_ascii=False).encode()
        assert refusal is None or (len(str(refusal)) < 400 and refusal.__cause__ is None)


def _read(
    read: Callable[[Path], dict[str, float | int]], path: Path
) -> tuple[dict[str, float | int], Exception | None]:
    try:
        return read(path), None
    except REFUSALS as refusal:
        return {}, refusal
