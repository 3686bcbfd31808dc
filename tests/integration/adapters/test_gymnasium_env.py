"""gym.make over the local sandbox: Gymnasium's own checks, honest spaces, standard wrappers, nothing left behind."""

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from gymnasium.wrappers import RecordEpisodeStatistics, RecordVideo, TransformReward

import harbor_gym
from harbor_gym.adapters.gymnasium import HarborTerminalEnv, KeystrokesToTerminus, TokenizedText
from harbor_gym.errors import TaskError, UsageError, VerifierError
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.patience import PATIENCE_SEC, wait_until
from tests.helpers.tasks import DONE, write_task

gym.register_envs(harbor_gym)

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

COMPLETE = "<task_complete/>"
SETTINGS: dict[str, Any] = {"sandbox": "local", "confirm_task_complete": False}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_task(folder / "first")
    write_task(folder / "second", instruction="Write done 一次 into /srv/answer.\n")
    return folder


@pytest.fixture
def terminal(tasks: Path) -> Iterator[HarborTerminalEnv]:
    env = HarborTerminalEnv(task_dirs=tasks, observation="dict", render_mode="rgb_array", **SETTINGS)
    yield env
    env.close()


def make(task_dir: Path, **settings: Any) -> gym.Env[Any, Any]:
    return gym.make("HarborTerminal-v0", task_dir=task_dir, **{**SETTINGS, **settings})


# -- Gymnasium's own checks: a warning of theirs fails the test ------------------------------------------------------


def test_gymnasiums_checker_is_content(task_dir: Path) -> None:
    env = make(task_dir, render_mode="ansi", observation="dict")
    check_env(env.unwrapped)
    env.close()


def test_two_environments_match(task_dir: Path) -> None:
    first, second = (make(task_dir, render_mode="ansi", observation="dict", time_limit_sec=1e9) for _ in range(2))
    check_environments_match(first, second, num_steps=3, info_comparison="keys-equivalence")
    first.close()
    second.close()


# -- episodes --------------------------------------------------------------------------------------------------------


def test_an_episode_ends_as_gymnasium_has_it(tasks: Path) -> None:
    env = make(tasks / "first", max_turns=2)
    observation, info = env.reset(seed=7)
    assert env.observation_space.contains(observation)
    assert (info["seed"], info["instruction"]) == (7, "Write the word done into /srv/answer.\n")
    _, reward, terminated, truncated, info = env.step(DONE)
    assert (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step(COMPLETE)
    assert (reward, terminated, truncated, info["end_reason"]) == (1.0, True, False, "completed")
    _, info = env.reset()
    assert "seed" not in info
    env.step("true\n")
    _, reward, terminated, truncated, info = env.step("true\n")
    assert (reward, terminated, truncated, info["end_reason"]) == (0.0, False, True, "max_turns")
    with pytest.raises(UsageError, match="the episode is over"):
        env.step("true\n")
    assert env.spec is not None
    assert env.spec.nondeterministic
    env.close()


def test_a_failure_of_the_infrastructure_raises_and_the_next_episode_runs(tmp_path: Path) -> None:
    broken = "#!/bin/bash\n[ -e /srv/broken ] || echo 0 > /logs/verifier/reward.txt\n"
    env = make(write_task(tmp_path / "broken", test_sh=broken), ambiguous_failures="infrastructure")
    env.reset()
    env.step("touch /srv/broken\n")
    with pytest.raises(VerifierError):
        env.step(COMPLETE)
    env.reset()
    assert env.step(COMPLETE)[1:4] == (0.0, True, False)
    env.close()
    absent = make(tmp_path / "absent")
    with pytest.raises(TaskError, match="absent"):
        absent.reset()


def test_a_task_is_picked_by_option_or_drawn_with_the_seed(terminal: HarborTerminalEnv) -> None:
    assert terminal.reset(options={"task": "second"})[1]["task"] == "test/second"
    drawn = [terminal.reset(seed=seed)[1]["task"] for seed in (0, 1, 2, 3, 0)]
    assert drawn[0] == drawn[4]
    assert set(drawn) == {"test/first", "test/second"}


def test_every_observation_lies_in_the_space(terminal: HarborTerminalEnv) -> None:
    observation, _ = terminal.reset(options={"task": "second"})
    assert observation["exit_code"] == -1
    seen: list[dict[str, Any]] = []
    for keys in (
        "printf '一二三 😀👩‍👩‍👧 e\\u0301 \\u200b\\ufe0f\\t|'; (exit 7)\n",
        "python3 - 2>/dev/null || printf '\\xc2\\x85\\x1b]0;t\\x07\\xff\\xed\\xa0\\x80\\x00\\x01|'\n\x04",
        "seq 100000\n",
        "tput smcup; printf '\\033[2J\\033[10;300Hx'; sleep 0.3\n",
        "head -c 60000 /dev/urandom\n",
        "unfinished",
    ):
        observation, *_ = terminal.step(keys)
        assert terminal.observation_space.contains(observation), observation
        seen.append(observation)
    assert "一二三 😀" in seen[0]["output"]
    assert "一二三" in seen[0]["screen"]
    assert seen[0]["exit_code"] == 7
    assert seen[2]["screen"].splitlines()[-2] == "100000"
    assert len(seen[2]["output"].encode()) <= 10_000
    assert seen[-1]["remaining"].tolist() == pytest.approx([1 - 6 / 50, 1.0]), "turns; this task has no time limit"


def test_pictures_and_text_show_the_same_screen(terminal: HarborTerminalEnv) -> None:
    terminal.reset(options={"task": "first"})
    blank = terminal.render()
    observation, *_ = terminal.step("printf '\\033[31mred\\033[m\\n'\n")
    picture = terminal.render()
    assert picture.shape == (720, 1440, 3)
    assert (picture != blank).any()
    lines = observation["screen"].splitlines()
    row = lines.index("red")
    red = picture[row * 18 : (row + 1) * 18, :27].reshape(-1, 3).max(axis=0)
    assert red[0] > 180 > 80 > red[1]
    assert tuple(observation["cursor"]) == (len(lines) - 1, len(lines[-1]) + 1)
    terminal.step(COMPLETE)
    assert (terminal.render() != blank).any(), "the last screen outlives the episode"


def test_human_mode_prints_the_screen_by_itself(task_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = make(task_dir, render_mode="human")
    env.reset()
    env.step("echo for people\n")
    env.close()
    assert "\nfor people\n" in capsys.readouterr().out


# -- wrappers --------------------------------------------------------------------------------------------------------


def test_the_standard_wrappers_work(task_dir: Path, tmp_path: Path) -> None:
    env = gym.make(
        "HarborTerminal-v0",
        task_dir=task_dir,
        max_episode_steps=3,
        render_mode="rgb_array",
        action="commands",
        **SETTINGS,
    )
    env = TransformReward(RecordEpisodeStatistics(env), lambda reward: 10 * float(reward))
    env = RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda episode: True)
    with pytest.raises(gym.error.ResetNeeded):
        env.step([])
    env.reset()
    _, reward, terminated, _, info = env.step([(DONE, 1.0), ("exit\n", np.float64(1))])
    assert (reward, terminated, info["episode"]["r"], info["episode"]["l"]) == (10.0, True, 1.0, 1)
    env.reset()
    for _ in range(2):
        assert not any(env.step([("true\n", 1)])[2:4])
    _, reward, terminated, truncated, info = env.step([])
    assert (reward, terminated, truncated) == (0.0, False, True), "cut off from outside: the verifier was not asked"
    assert "end_reason" not in info
    env.close()
    videos = sorted((tmp_path / "videos").iterdir())
    assert [video.suffix for video in videos] == [".mp4", ".mp4"]
    assert all(video.read_bytes()[4:8] == b"ftyp" for video in videos)


def test_our_wrappers_translate_keystrokes_and_tokens(task_dir: Path) -> None:
    tokenizer = byte_level_tokenizer()
    env = TokenizedText(KeystrokesToTerminus(make(task_dir, action="message")), tokenizer)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    observation, *_ = env.step(tuple(tokenizer.encode("echo 一 | cat\n", add_special_tokens=False)))
    assert "一" in tokenizer.decode(list(observation)).splitlines()[1]
    env.step(tuple(tokenizer.encode(DONE, add_special_tokens=False)))
    *_, reward, terminated, _, info = env.step(tuple(tokenizer.encode(COMPLETE, add_special_tokens=False)))
    assert (reward, terminated, info.get("parse_error")) == (1.0, True, None)
    env.close()
    with pytest.raises(UsageError, match="text on both sides"):
        TokenizedText(make(task_dir, action="commands"), tokenizer)


# -- callers, and ends of the process --------------------------------------------------------------------------------


def test_it_works_in_threads_and_inside_a_running_loop(task_dir: Path) -> None:
    async def notebook() -> float:
        return episode(task_dir)

    rewards = [asyncio.run(notebook())]
    threads = [threading.Thread(target=lambda: rewards.append(episode(task_dir))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0, 1.0, 1.0]


def episode(task_dir: Path) -> float:
    env = make(task_dir)
    env.reset()
    env.step(DONE)
    reward = float(env.step(COMPLETE)[1])
    env.close()
    return reward


def test_garbage_collection_stops_the_sandbox(task_dir: Path) -> None:
    env = make(task_dir)
    env.reset()
    del env
    gc.collect()  # nothing_left looks for leftovers


_ENDS = """
    import os, sys, gymnasium as gym, harbor_gym
    gym.register_envs(harbor_gym)
    env = gym.make("HarborTerminal-v0", task_dir=sys.argv[1], sandbox="local")
    env.reset()
    env.step("sleep 1000 &\\n")
    child = os.fork()
    if child == 0:
        try:
            env.step("true\\n")
        except harbor_gym.HarborGymError as exc:
            print("child:", type(exc).__name__, flush=True)
        env.close()
        raise SystemExit
    print(os.waitpid(child, 0)[1], flush=True)
    print(env.step("echo still here\\n")[0].count("still here"), flush=True)
"""


@pytest.mark.parametrize(("last_line", "code"), [("sys.exit(3)", 3), ("raise RuntimeError('unhandled')", 1)])
def test_no_end_of_the_interpreter_leaves_a_sandbox(task_dir: Path, last_line: str, code: int) -> None:
    script = f"{textwrap.dedent(_ENDS)}\n{last_line}\n"
    command = [sys.executable, "-c", script, str(task_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output, errors = process.communicate(timeout=PATIENCE_SEC)
    assert (process.returncode, output) == (code, "child: UsageError\n0\n2\n"), errors
    assert "Exception ignored" not in errors
    assert not list(Path(tempfile.gettempdir()).glob("harbor-gym*"))
    wait_until(lambda: not _processes_naming(str(task_dir)))


def _processes_naming(text: str) -> list[str]:
    """Command lines of processes that mention ``text``, but for this one."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_text(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


@pytest.mark.slow
def test_30_episodes_leave_nothing_and_grow_nothing(task_dir: Path) -> None:
    env = make(task_dir)
    for _ in range(5):
        env.reset()
    before = _held()
    for _ in range(30):
        env.reset()
    assert _held() == before
    env.close()


def _held() -> dict[str, int]:
    """Count this process's resources: threads, open files, children, temporary files."""
    gc.collect()
    own = Path("/proc/self")
    children = (own / "task").glob("*/children")
    return {
        "threads": len(list((own / "task").iterdir())),
        "files": len(list((own / "fd").iterdir())),
        "children": sum(len(file.read_text().split()) for file in children),
        "temporary": len(list(Path(tempfile.gettempdir()).rglob("*"))),
    }
