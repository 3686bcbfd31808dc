"""One episode, any trainer: whoever drives it, the same tokens, mask, reward, end and outcome of a lost sandbox.

An adapter joins by a function in players/ that plays an ``Episode`` through the adapter's own rollout code.
One whose framework has an environment of its own is in ``ENGINES``: it runs there, against the same reference.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason, Sample
from harbor_gym.errors import HarborGymError
from tests.contract.players import cookbook, harbor, nemo_gym, openenv, skyrl, trl, verifiers
from tests.contract.players.episode import FORGE, FORGED, VANISH, Episode, Played, Script, by_run_episode
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, UNDONE, write_steps, write_task

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


def adapters(*, but: Collection[str] = ()) -> list[Any]:
    """Return the adapters as parameters, each with its engine's mark."""
    marks = {name: getattr(pytest.mark, engine) for name in ADAPTERS if (engine := ENGINES.get(name, "tinker"))}
    return [pytest.param(name, marks=marks.get(name, ())) for name in ADAPTERS if name not in but]


SOLVED = Script((message("pwd\n"), message(DONE), COMPLETE))
EPISODES: Mapping[str, tuple[Script, Mapping[str, Any], Played]] = {
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
    "empty": (Script(("", message(DONE), COMPLETE)), {}, Played(1.0, EndReason.COMPLETED)),
    "mute": (Script(("", message(DONE), COMPLETE), mute_at=0), {}, Played(1.0, EndReason.COMPLETED)),
    "thinking": (
        Script(tuple(f"<think>\nI plan.\n</think>\n\n{answer}" for answer in (message(DONE), COMPLETE))),
        {},
        Played(1.0, EndReason.COMPLETED),
    ),
    "endless thinking": (
        Script(("<think>\nI wonder", message(DONE), COMPLETE)),
        {},
        Played(1.0, EndReason.COMPLETED),
    ),
    "session ended": (Script((message(DONE), message("exit\n"))), {}, Played(1.0, EndReason.SESSION_ENDED)),
    "lost": (
        Script((message("true\n"), message(f"{VANISH}\n"))),
        {},
        Played(None, EndReason.INFRASTRUCTURE_ERROR, "sandbox_lost"),
    ),
}
"""Sampler, budgets, and what comes of it."""


REFUSED = Script((message(DONE), message(f"echo {'x' * 3000}\n")), window=4000)

OWN_ENGINES = frozenset({"tinker", "tinker-agent", "trl"})
"""Where the framework itself asks its engine (the cookbook's completer, TRL's generation): it sees the refusal."""

AGENTS = frozenset({"harbor-gateway", "nemo-gym-agent", "skyrl-agent", "tinker-agent", "verifiers-agent"})
"""Where a foreign agent is the loop. It begins a new conversation in each step: Harbor runs it anew."""

FORKS = frozenset({("verifiers", "endless thinking"), ("verifiers-agent", "endless thinking")})
"""Where an episode is not one sequence. verifiers' renderers do not go on from thinking that a stop token left open
(``bridge_to_next_turn``): the chat is rendered anew, without it, and the trace has a second branch."""

AGENTS_OWN_WORDS = {"session ended": EndReason.COMPLETED}
"""Ends that only the loop knows, where a foreign agent is the loop: it simply ends."""

FIRST = (message(DONE), COMPLETE)
BOTH, HALF, LATE = (
    Script(FIRST, second=(COMPLETE,)),
    Script(FIRST, second=(message(UNDONE), COMPLETE)),
    Script((COMPLETE,), second=FIRST),
)
STEPS: Mapping[str, tuple[Script, str, Mapping[str, Any], Played]] = {
    "both solved": (BOTH, "mean", {}, Played(1.0, EndReason.COMPLETED)),
    "half solved": (HALF, "mean", {}, Played(0.5, EndReason.COMPLETED)),
    "the last one solved": (LATE, "final", {}, Played(1.0, EndReason.COMPLETED)),
    "the last one not solved": (HALF, "final", {}, Played(0.0, EndReason.COMPLETED)),
    "cut in the second": (HALF, "mean", {"max_turns": 3}, Played(0.5, EndReason.MAX_TURNS)),
    "cut in the first": (Script((message(DONE),)), "mean", {"max_turns": 1}, Played(1.0, EndReason.MAX_TURNS)),
}
"""Sampler, the task's own rule, budgets, and what comes of a task of two steps."""


class Counting:
    """A sampler that counts what it is asked."""

    asked = 0

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        type(self).asked += 1
        return await SOLVED(prompt)


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
    end_reason = AGENTS_OWN_WORDS.get(name, expected.end_reason) if adapter in AGENTS else expected.end_reason
    assert played == dataclasses.replace(expected, end_reason=end_reason)
    if (adapter, name) in FORKS:
        assert played.sequence is None
    elif expected.reward is not None:
        assert played.trained == (await by_run_episode(episode)).trained


@pytest.mark.parametrize("adapter", adapters(but=OWN_ENGINES))
async def test_a_prompt_that_the_engine_refuses(adapter: str, model_dir: str, tmp_path: Path) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "harbor_gym.testing:FakeEnvironment"
    episode = Episode(write_task(tmp_path / "task"), model_dir, REFUSED, sandbox, options)
    played = await ADAPTERS[adapter](episode)
    assert played == Played(1.0, EndReason.CONTEXT_OVERFLOW)
    ours = dataclasses.replace(episode, sampler=dataclasses.replace(REFUSED, window=None), max_context_tokens=4000)
    assert played.trained == (await by_run_episode(ours)).trained, "as when our own limit sees it"


@pytest.mark.parametrize("adapter", adapters(but=frozenset(ADAPTERS) - AGENTS))
async def test_an_agent_that_can_not_be_installed(adapter: str, model_dir: str, tmp_path: Path) -> None:
    agent = "tests.helpers.gateway.format_agent:UninstallableAgent"
    sandbox = "harbor_gym.testing:FakeEnvironment"
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, sandbox, {}, agent_path=agent)
    assert await ADAPTERS[adapter](episode) == Played(None, EndReason.INFRASTRUCTURE_ERROR, "agent_failed")


@pytest.mark.parametrize("adapter", adapters())
async def test_a_missing_variable_is_found_before_the_episode(adapter: str, model_dir: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml='[verifier.env]\nKEY = "${NO_SUCH_KEY_HERE}"\n')
    Counting.asked = 0
    episode = Episode(task, model_dir, Counting(), "harbor_gym.testing:FakeEnvironment", {})
    try:
        is_found = (await ADAPTERS[adapter](episode)).failure_kind == "task_error"
    except (HarborGymError, ValueError) as exc:  # a ValueError is how TRL's worker is told to stop
        is_found = "NO_SUCH_KEY_HERE" in str(exc)
    assert (is_found, Counting.asked) == (True, 0)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("adapter", adapters())
async def test_of_steps(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    script, strategy, budgets, expected = STEPS[name]
    options = {"solved_when": {"/srv/answer": "done"}}
    task = write_steps(tmp_path / "task", root_toml=f'multi_step_reward_strategy = "{strategy}"\n')
    episode = Episode(task, model_dir, script, "harbor_gym.testing:FakeEnvironment", options, **budgets)
    played = await ADAPTERS[adapter](episode)
    assert played == expected
    if adapter not in AGENTS:
        assert played.trained == (await by_run_episode(episode)).trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", adapters(but=("run_episode",)))
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
