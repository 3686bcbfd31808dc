"""One episode, any trainer: whoever drives it, the same tokens, mask, reward, end and outcome of a lost sandbox.

An adapter joins by a function in players/ that plays an ``Episode`` through the adapter's own rollout code.
One whose framework has an environment of its own is in ``ENGINES``: it runs there, against the same reference.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason
from tests.contract.players import cookbook, harbor, nemo_gym, openenv, skyrl, trl, verifiers
from tests.contract.players.episode import FORGE, FORGED, VANISH, Episode, Played, Script, by_run_episode
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

ADAPTERS: Mapping[str, Callable[[Episode], Awaitable[Played]]] = {
    "run_episode": by_run_episode,
    "tinker": cookbook.by_tinker,
    "tinker-agent": cookbook.by_tinker_agent,
    "harbor-env": harbor.by_harbor_env,
    "harbor-gateway": harbor.by_harbor_gateway,
    "openenv-session": openenv.by_openenv_session,
    "openenv-server": openenv.by_openenv_server,
    "nemo-gym": nemo_gym.by_nemo_gym,
    "nemo-gym-agent": nemo_gym.by_nemo_gym_agent,
    "nemo-gym-server": nemo_gym.by_nemo_gym_server,
    "trl": trl.by_trl,
    "verifiers": verifiers.by_verifiers,
    "verifiers-agent": verifiers.by_verifiers_agent,
    "skyrl": skyrl.by_skyrl,
    "skyrl-step-wise": skyrl.by_skyrl_step_wise,
    "skyrl-agent": skyrl.by_skyrl_agent,
    "trl-async": trl.by_trl_async,
}
"""Every way to play an episode, by name."""

ENGINES = {"run_episode": "", "verifiers": "verifiers", "verifiers-agent": "verifiers", "nemo-gym-server": "nemo_gym"}
"""The mark of an adapter's engine, where it is not ``tinker``: that of an environment of its own, or none."""


def adapters(*, but: str = "") -> list[Any]:
    """Return the adapters as parameters, each with its engine's mark."""
    marks = {name: getattr(pytest.mark, engine) for name in ADAPTERS if (engine := ENGINES.get(name, "tinker"))}
    return [pytest.param(name, marks=marks.get(name, ())) for name in ADAPTERS if name != but]


SOLVED = Script((message("pwd\n"), message(DONE), COMPLETE))
EPISODES: Mapping[str, tuple[Script, Mapping[str, int], Played]] = {
    "solved": (SOLVED, {}, Played(1.0, EndReason.COMPLETED)),
    "given up": (Script((COMPLETE,)), {}, Played(0.0, EndReason.COMPLETED)),
    "unreadable": (Script(("nö {json}", message(DONE), COMPLETE)), {}, Played(1.0, EndReason.COMPLETED)),
    "marks in output": (
        Script((message(f"{FORGE}\n"), message(DONE), COMPLETE)),
        {},
        Played(1.0, EndReason.COMPLETED),
    ),
    "out of turns": (
        Script((message(DONE), message("true\n"))),
        {"max_turns": 2},
        Played(1.0, EndReason.MAX_TURNS),
    ),
    "cut": (Script((message("true\n"), message(DONE)), cut_at=1), {}, Played(0.0, EndReason.MAX_TOKENS)),
    "overflowing": (
        Script((message(DONE), message(f"echo {'x' * 3000}\n"))),
        {"max_context_tokens": 4000},
        Played(1.0, EndReason.CONTEXT_OVERFLOW),
    ),
    "session ended": (Script((message(DONE), message("exit\n"))), {}, Played(1.0, EndReason.SESSION_ENDED)),
    "lost": (
        Script((message("true\n"), message(f"{VANISH}\n"))),
        {},
        Played(None, EndReason.INFRASTRUCTURE_ERROR, "sandbox_lost"),
    ),
}
"""Sampler, budgets, and what comes of it."""

AGENTS_OWN_WORDS = {
    (name, "session ended"): EndReason.COMPLETED
    for name in ("harbor-gateway", "nemo-gym-agent", "skyrl-agent", "tinker-agent", "verifiers-agent")
}
"""Ends that only the loop knows, where a foreign agent is the loop: it simply ends."""

READS_MARKS = ("verifiers", "verifiers-agent")
"""Where the framework tokenises the chat itself and reads marks in content as control tokens, as renderers 0.1.12."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory that holds a tokenizer and nothing else."""
    path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("name", EPISODES)
@pytest.mark.parametrize("adapter", adapters())
async def test_in_memory(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    if name == "marks in output" and adapter in READS_MARKS:
        return  # test_marks_in_output_open_no_turn has what comes of it
    script, budgets, expected = EPISODES[name]
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "tests.contract.players.episode:Vanishing"
    episode = Episode(write_task(tmp_path / "task"), model_dir, script, sandbox, options, **budgets)
    played = await ADAPTERS[adapter](episode)
    end_reason = AGENTS_OWN_WORDS.get((adapter, name), expected.end_reason)
    assert played == dataclasses.replace(expected, end_reason=end_reason)
    if expected.reward is not None:
        assert played.trained == (await by_run_episode(episode)).trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", adapters(but="run_episode"))
async def test_in_a_real_sandbox(adapter: str, model_dir: str, tmp_path: Path) -> None:
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, "local", {})
    played, reference = await ADAPTERS[adapter](episode), await by_run_episode(episode)
    assert played == reference == Played(1.0, EndReason.COMPLETED)
    assert played.trained == reference.trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", adapters())
async def test_a_real_sandbox_that_is_lost_when_it_is_graded(adapter: str, model_dir: str, tmp_path: Path) -> None:
    sandbox = "tests.helpers.sandboxes.failing:LostAtGrading"
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, sandbox, {})
    played = await ADAPTERS[adapter](episode)
    assert (played.reward, played.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert played.failure_kind == (await by_run_episode(episode)).failure_kind


@pytest.mark.parametrize("adapter", adapters())
async def test_marks_in_output_open_no_turn(adapter: str, model_dir: str, tmp_path: Path) -> None:
    script, budgets, _ = EPISODES["marks in output"]
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "tests.contract.players.episode:Vanishing"
    episode = Episode(write_task(tmp_path / "task"), model_dir, script, sandbox, options, **budgets)
    played = await ADAPTERS[adapter](episode)
    shown = [token for token, mask, _ in played.trained if not mask]
    tokenizer = byte_level_tokenizer()
    assert FORGED in tokenizer.decode(shown)
    start, tag = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<tool_call>"])
    assert (shown.count(tag) > 0) is (adapter in READS_MARKS)
    assert adapter in READS_MARKS or shown.count(start) == 7
