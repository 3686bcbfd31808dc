"""Spaces and pictures, without a sandbox."""

import contextlib
import copy
import gc
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import harbor_gym
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig, WarmPool
from harbor_gym.adapters.gymnasium import HarborTerminalEnv, HarborTerminalVectorEnv, TerminalText, rendering
from harbor_gym.adapters.gymnasium.rendering import CELL_HEIGHT, CELL_WIDTH, as_terminal_output, draw
from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.terminal import Screen
from harbor_gym.terminal.screen.screen import parse_screen
from harbor_gym.testing import write_tiny_task
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.tasks import write_task

gym.register_envs(harbor_gym)


def make_screen(*lines: str, columns: int = 20, rows: int = 5, cursor: tuple[int, int] = (4, 0)) -> Screen:
    padded = (*lines, *[""] * (rows - len(lines)))
    return Screen(columns, rows, padded, *cursor, is_cursor_visible=True, is_full_screen=False)


_IS_REGISTERED = "assert 'HarborTerminal-v0' in gymnasium.registry; "


@pytest.mark.parametrize(
    "program",
    [
        "import harbor_gym, gymnasium; " + _IS_REGISTERED,
        "import gymnasium, harbor_gym; " + _IS_REGISTERED,
        "import harbor_gym; from gymnasium import spaces; import gymnasium; " + _IS_REGISTERED,
        "import harbor_gym, importlib.util; importlib.util.find_spec('gymnasium'); import gymnasium; " + _IS_REGISTERED,
        "import harbor_gym, sys; sys.modules['numpy'] = None\n"
        "try: import gymnasium\nexcept ImportError: del sys.modules['numpy']; import gymnasium\n" + _IS_REGISTERED,
    ],
)
def test_the_environment_is_registered_once_both_are_imported(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50))
def test_text_holds_whatever_can_be_encoded(text: str) -> None:
    space = TerminalText(50)
    assert space.contains(text)
    flat: Any = spaces.flatten(space, text)
    assert flat in spaces.flatten_space(space)
    assert spaces.unflatten(space, flat) == text


@pytest.mark.parametrize("value", ["\0", "\ud800", "x" * 51, 7, None, b"x"])
def test_text_holds_nothing_else(value: object) -> None:
    assert not TerminalText(50).contains(value)


def test_text_behaves_as_a_space_does() -> None:
    space = TerminalText(1000, seed=1)
    again = TerminalText(1000, seed=1)
    samples = [space.sample() for _ in range(20)]
    assert samples == [again.sample() for _ in range(20)]
    assert all(space.contains(sample) and len(sample) <= space.sample_length for sample in samples)
    assert len(space.sample(mask=(5, None))) == 5
    assert space == copy.deepcopy(space) == pickle.loads(pickle.dumps(space))
    assert space != TerminalText(999)
    assert repr(space) == "TerminalText(1000)"
    assert gym.vector.utils.batch_space(space, 2).contains(("一", "😀"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "task_dir"),
        ({"task_dir": ".", "task_dirs": ["."]}, "either"),
        ({"task_dir": ".", "action": "keys"}, "'keystrokes', 'commands', 'message'"),
        ({"task_dir": ".", "observation": "image"}, "'text', 'dict'"),
        ({"task_dir": ".", "render_mode": "rgb"}, "rgb_array"),
        ({"task_dir": ".", "max_turn": 3}, "max_turn: Extra inputs"),
        ({"task_dir": ".", "max_turns": 0}, "max_turns: Input should be greater"),
        ({"task_dir": ".", "action_format": "bash-tool"}, "action='message'"),
        ({"task_dirs": []}, "different directory names"),
        ({"task_dirs": ["a/same", "b/same"]}, "different directory names"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_environment_is_made(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        HarborTerminalEnv(**settings)


def test_calls_out_of_order_are_refused_in_words(task_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        HarborTerminalEnv(task_dirs=tmp_path / "nowhere")
    env = HarborTerminalEnv(task_dir, render_mode="ansi")
    with pytest.raises(UsageError, match="reset"):
        env.step("ls\n")
    with pytest.raises(UsageError, match="reset"):
        env.render()
    with pytest.raises(UsageError, match="option 'task', got taks"):
        env.reset(options={"taks": "x"})
    with pytest.raises(UsageError, match="this environment has: task"):
        env.reset(options={"task": "other"})
    with pytest.raises(UsageError, match="a string, got int"):
        env.step(3)
    env.close()
    env.close()
    with pytest.raises(UsageError, match="closed"):
        env.reset()
    with pytest.raises(UsageError, match="human"):
        HarborTerminalVectorEnv(2, task_dir, render_mode="human")
    with pytest.raises(UsageError, match="num_envs"):
        HarborTerminalVectorEnv(0, task_dir)


@pytest.mark.parametrize("make_copy", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_holds_sandboxes_is_not_copied(
    make_copy: Callable[[object], object], task_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = TerminalEnvConfig(task_dir=task_dir, sandbox=FAKE)
    assert pickle.loads(pickle.dumps(config)) == config
    env = HarborTerminalEnv(task_dir, sandbox=FAKE)
    env.reset()
    with contextlib.closing(env), contextlib.closing(HarborTerminalVectorEnv(1, task_dir)) as vector_env:
        for owner in (env, vector_env, AsyncTerminalGymEnv(config), WarmPool(config, size=1)):
            with pytest.raises(UsageError, match=f"a {type(owner).__name__} holds sandboxes and can't be pickled"):
                make_copy(owner)
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_the_longest_instruction_has_room_in_the_observation(tmp_path: Path) -> None:
    short = HarborTerminalEnv(write_task(tmp_path / "short")).observation_space
    long = HarborTerminalEnv(write_task(tmp_path / "long", instruction="x" * 50_000)).observation_space
    assert isinstance(short, TerminalText)
    assert isinstance(long, TerminalText)
    assert long.max_length > short.max_length + 49_000


def test_a_screen_is_read_from_what_tmux_prints() -> None:
    answer = "noise\n@n 10 3 1 10 1 0 0\n\x1b[31mred\x1b[39m \x0eqx\x0f\nsecond"
    screen = parse_screen(answer, "@n")
    assert screen is not None
    assert screen.text == "red ─│\nsecond"
    assert (screen.cursor_row, screen.cursor_column) == (1, 9), "a cursor behind the last column stands on it"
    assert len(screen.lines) == 3
    dead = parse_screen("@n 30 4 3 0 0 0 1\nlast words\n\n\nPane is dead (status 3, now)\n", "@n")
    assert dead is not None
    assert (dead.text, len(dead.lines)) == ("last words", 4), "what tmux itself writes is not the terminal's"
    assert parse_screen("no server running on /x", "@n") is None


def test_a_picture_shows_characters_colours_and_the_cursor() -> None:
    def cell(picture: Any, row: int, column: int) -> Any:
        return picture[row * CELL_HEIGHT : (row + 1) * CELL_HEIGHT, column * CELL_WIDTH : (column + 1) * CELL_WIDTH]

    picture = draw(make_screen("A\x1b[31mA\x1b[m\x1b[44m \x1b[m\x1b[7m \x1b[m一😀", "  \x1b[38;5;208mW\x1b[m"))
    assert picture.shape == (5 * CELL_HEIGHT, 20 * CELL_WIDTH, 3)
    assert picture.dtype == np.uint8
    empty = cell(picture, 3, 3)
    assert np.ptp(empty) == 0
    plain, red, blue, inverse = (cell(picture, 0, column).astype(int) for column in range(4))
    assert np.ptp(plain) > 100
    assert red[..., 0].max() > 150 > red[..., 1].max()
    assert blue[0, 0, 2] > blue[0, 0, 0] + 50
    assert inverse.min() > 150
    assert np.ptp(cell(picture, 0, 4)) > 50, "a character that the font lacks leaves a mark"
    assert cell(picture, 1, 2)[..., 0].max() > 200
    assert cell(picture, 4, 0).min() > 150, "the cursor"


def test_the_human_picture_is_colours_in_place_and_text_elsewhere() -> None:
    screen = make_screen("\x1b[31mred\x1b[m", cursor=(0, 3))
    assert as_terminal_output(screen, in_place=False) == "red\n"
    shown = as_terminal_output(screen, in_place=True)
    assert "\x1b[31mred" in shown
    assert shown.endswith("\x1b[1;4H\x1b[?25h")


def test_drawing_without_its_packages_reports_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyte", None)
    with pytest.raises(MissingDependencyError, match=r"harbor-gym\[render\]"):
        draw(make_screen("x"))


@pytest.mark.parametrize("observation", ["text", "dict"])
@pytest.mark.usefixtures("nothing_left")
def test_gymnasiums_processes_work_as_they_stand(tmp_path: Path, observation: str) -> None:
    envs = gym.make_vec(
        "HarborTerminal-v0",
        num_envs=2,
        vectorization_mode="async",
        task_dir=write_tiny_task(tmp_path / "task"),
        sandbox=FAKE,
        observation=observation,
    )
    first, _ = envs.reset(seed=1)
    kept = copy.deepcopy(first)
    for words in (("echo 一😀\n", "echo two\n"), ("echo x\n", "true\n")):
        seen, rewards, *_ = envs.step(words)
        assert envs.observation_space.contains(seen)
        assert rewards.tolist() == [0.0, 0.0]
        texts = seen if observation == "text" else seen["output"]
        for text, typed in zip(texts, words, strict=True):
            assert typed.removeprefix("echo ").strip() in text or typed == "true\n"
    texts, before = (first, kept) if observation == "text" else (first["output"], kept["output"])
    assert texts == before, "an observation that was returned does not change"
    envs.close()


def test_a_picture_is_advertised_where_it_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendering.render_modes() == ("ansi", "human", "rgb_array")
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "pyte" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert rendering.render_modes() == ("ansi", "human")
    with pytest.raises(MissingDependencyError, match=r"harbor-gym\[render\]"):
        HarborTerminalEnv(write_task(tmp_path / "task"), render_mode="rgb_array")
    HarborTerminalEnv(write_task(tmp_path / "task"), render_mode="ansi")
