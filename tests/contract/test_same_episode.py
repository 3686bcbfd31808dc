"""One episode, any trainer: the same tokens, mask, reward, end and outcome of a lost sandbox by every adapter.

An adapter joins by a function in players/ that plays an ``Episode`` through the adapter's own rollout code.
One with a framework in an environment of its own is in ``ENGINES``: it runs there, against the same reference.
"""

import dataclasses
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason, Sample
from harbor_gym.errors import ContextOverflowError, HarborGymError
from harbor_gym.formats.prompts import SUMMARY_REQUEST
from tests.contract.differences import AGENTS, DIFFERENCES, doors
from tests.contract.players import cookbook, gymnasium, harbor, nemo_gym, openenv, skyrl, trl, verifiers, verl
from tests.contract.players.episode import FORGE, FORGED, TURN, Episode, Played, Script, by_run_episode, trained_of
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, UNDONE, write_steps, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

ADAPTERS: Mapping[str, Callable[[Episode], Awaitable[Played]]] = {
    "run_episode": by_run_episode,
    "tinker": cookbook.by_tinker,
    "tinker-agent": cookbook.by_tinker_agent,
    "harbor-env": harbor.by_harbor_env,
    "harbor-gateway": harbor.by_harbor_gateway,
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
    "trl-async-agent": trl.by_trl_async_agent,
    "verl": verl.by_verl,
    "verl-agent": verl.by_verl_agent,
    "gymnasium": gymnasium.by_gymnasium,
}
"""Every way to play an episode, by name."""

ENGINES = {
    "run_episode": "",
    "gymnasium": "",
    "verifiers": "verifiers",
    "verifiers-agent": "verifiers",
    "nemo-gym-server": "nemo_gym",
    "verl": "verl",
    "verl-agent": "verl",
}
"""The mark of an adapter's engine, where it is not ``tinker``: that of an environment of its own, or none."""


def adapters(*, but: Collection[str] = ()) -> list[Any]:
    """Return the adapters as parameters, each with its engine's mark."""
    marks = {name: getattr(pytest.mark, engine) for name in ADAPTERS if (engine := ENGINES.get(name, "tinker"))}
    return [pytest.param(name, marks=marks.get(name, ())) for name in ADAPTERS if name not in but]


def thinking(*answers: str) -> tuple[str, ...]:
    """Return answers with thinking in front."""
    return tuple(f"<think>\nI plan.\n</think>\n\n{answer}" for answer in answers)


THOUGHTFUL = thinking(message(DONE), COMPLETE)
SOLVED = Script((message("pwd\n"), message(DONE), COMPLETE))
REALLY_SOLVED = Script((*(message(keys, duration=60.0) for keys in ("pwd\n", DONE)), COMPLETE))
"""The same for a real sandbox: a command that ends returns at once, however busy the machine is."""
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
        Script(THOUGHTFUL),
        {},
        Played(1.0, EndReason.COMPLETED),
    ),
    "endless thinking": (
        Script(("<think>\nI wonder", message(DONE), COMPLETE)),
        {},
        Played(1.0, EndReason.COMPLETED),
    ),
    "not as the tokenizer writes": (Script(THOUGHTFUL, spelling="but tags"), {}, Played(1.0, EndReason.COMPLETED)),
    "marks spelt by the policy": (
        Script((message(f"# {TURN}\n"), message(DONE), COMPLETE), spelling="all"),
        {},
        Played(1.0, EndReason.COMPLETED),
    ),
    "thinking spelt": (Script(THOUGHTFUL, spelling="all"), {}, Played(1.0, EndReason.COMPLETED)),
    "session ended": (Script((message(DONE), message("exit\n"))), {}, Played(1.0, EndReason.SESSION_ENDED)),
    "limit without pay": (
        Script((message(DONE), message("true\n"))),
        {"max_turns": 2, "settings": {"zero_reward_on_limit": True}},
        Played(0.0, EndReason.MAX_TURNS),
    ),
    "never readable": (Script(("no JSON",)), {}, Played(0.0, EndReason.PARSE_FAILURES)),
}
"""Sampler, budgets, and the outcome."""

REFUSED = Script((message(DONE), message(f"echo {'x' * 3000}\n")), window=4000)

AGENTS_OWN_WORDS = {"session ended": EndReason.COMPLETED, "never readable": EndReason.MAX_TURNS}
"""Ends that only the loop knows, where a foreign agent is the loop: it simply ends, or goes on."""

LIMITED = ("cut", "overflowing")
"""Episodes that a limit in tokens ends."""

QUOTED = Script((message("echo '<think>a</think>'\n"), message(DONE), COMPLETE))

MARKS = ("marks in output", "marks spelt by the policy")

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
    "thinking in both": (
        Script(THOUGHTFUL, second=thinking(message(UNDONE), COMPLETE), spelling="but tags"),
        "mean",
        {},
        Played(0.5, EndReason.COMPLETED),
    ),
    "cut in the first": (Script((message(DONE),)), "mean", {"max_turns": 1}, Played(1.0, EndReason.MAX_TURNS)),
}
"""Sampler, the task's own rule, budgets, and the outcome of a task of two steps."""


class Counting:
    """A sampler that counts its calls."""

    asked = 0

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        type(self).asked += 1
        return await SOLVED(prompt)


@pytest.mark.parametrize("name", EPISODES)
@pytest.mark.parametrize("adapter", adapters())
async def test_in_memory(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    if name in MARKS and adapter in doors("marks in content"):
        return  # test_marks_in_output_open_no_turn has the outcome
    if name in LIMITED and adapter in doors("limits in tokens"):
        return
    script, budgets, expected = EPISODES[name]
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "tests.contract.players.episode:Vanishing"
    episode = Episode(write_task(tmp_path / "task"), model_dir, script, sandbox, options, **budgets)
    played = await ADAPTERS[adapter](episode)
    is_agents = adapter in doors("end of the session")
    end_reason = AGENTS_OWN_WORDS.get(name, expected.end_reason) if is_agents else expected.end_reason
    assert played == dataclasses.replace(expected, end_reason=end_reason)
    if name == "endless thinking" and adapter in doors("thinking that never closes"):
        assert played.sequence is None
    elif name == "thinking spelt" and adapter in doors("thinking in marks of many tokens"):
        assert sampled(played) == sampled(await by_run_episode(episode))
    elif not (name == "never readable" and is_agents):
        assert played.trained == (await by_run_episode(episode)).trained


@pytest.mark.parametrize("adapter", adapters())
async def test_an_endless_policy_ends_without_any_setting(adapter: str, model_dir: str, tmp_path: Path) -> None:
    endless = Script((message("true\n"),))
    sandbox = "tests.contract.players.episode:Vanishing"
    options = {"solved_when": {"/srv/answer": "done"}}
    episode = Episode(write_task(tmp_path / "task"), model_dir, endless, sandbox, options, max_turns=None)
    played = await ADAPTERS[adapter](episode)
    assert (played.reward, played.end_reason) == (0.0, EndReason.MAX_TURNS)


@dataclasses.dataclass(frozen=True)
class Walking:
    """Types numbered commands with long output, and finishes after the tenth; it only reads the last number."""

    long: str = "x" * 200

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        tokenizer = byte_level_tokenizer()
        shown = tokenizer.decode(list(prompt))
        number = max(map(int, re.findall(r"(?:echo |Typed )(\d+)y", shown)), default=0) + 1
        answer = (
            COMPLETE if json.dumps(DONE) in shown else message(DONE if number > 10 else f"echo {number}y{self.long}\n")
        )
        if SUMMARY_REQUEST in shown:
            answer = f"Typed {number - 1}y."
        tokens = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>")]
        return Sample(tokens, [-number / (place + 1) for place in range(len(tokens))])


@pytest.mark.parametrize("kind", ["window", "summary", "untrained summary"])
@pytest.mark.parametrize("adapter", adapters(but=AGENTS))
async def test_an_episode_that_is_compacted_twice(adapter: str, kind: str, model_dir: str, tmp_path: Path) -> None:
    untrained, _, compaction = kind.rpartition(" ")
    settings = {"compaction": compaction, "compact_at": 4500 if kind == "window" else 3500}
    episode = Episode(
        write_task(tmp_path / "task"),
        model_dir,
        Walking(),
        "harbor_gym.testing:FakeEnvironment",
        {"solved_when": {"/srv/answer": "done"}},
        max_turns=20,
        settings={**settings, "train_summaries": not untrained},
    )
    if adapter in doors("one conversation an episode"):
        with pytest.raises((HarborGymError, ValueError), match=f"one conversation an episode: compaction={compaction}"):
            await ADAPTERS[adapter](episode)
        return
    played, reference = await ADAPTERS[adapter](episode), await by_run_episode(episode)
    assert played == reference == Played(1.0, EndReason.COMPLETED)
    assert len(reference.sequences) == 3
    assert [*map(trained_of, played.sequences)] == [*map(trained_of, reference.sequences)]
    summaries = [b"Typed" in byte_level_tokenizer().decode(item.completion).encode() for item in reference.sequences]
    assert summaries == [kind == "summary"] * 2 + [False], "a conversation ends with the summary"


def sampled(played: Played) -> list[tuple[int, int, float]]:
    """Return the policy's own text, without its observations."""
    return [item for item in played.trained if item[1]]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("adapter", adapters(but=doors("limits in tokens")))
async def test_a_prompt_that_the_engine_refuses(adapter: str, steps: int, model_dir: str, tmp_path: Path) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "harbor_gym.testing:FakeEnvironment"
    task = write_steps(tmp_path / "task") if steps else write_task(tmp_path / "task")
    script = dataclasses.replace(REFUSED, answers=FIRST, second=REFUSED.answers) if steps else REFUSED
    episode = Episode(task, model_dir, script, sandbox, options)
    ours = dataclasses.replace(episode, sampler=dataclasses.replace(script, window=None), max_context_tokens=4000)
    if adapter in doors("a refusal of the engine"):
        with pytest.raises(ContextOverflowError, match="maximum context length is 4000 tokens"):
            await ADAPTERS[adapter](episode)
        episode = ours
    played = await ADAPTERS[adapter](episode)
    assert played == Played(1.0, EndReason.CONTEXT_OVERFLOW)
    if not (steps and adapter in doors("conversation of a second step")):
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
    except HarborGymError as exc:
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
    if adapter not in doors("conversation of a second step"):
        assert played.trained == (await by_run_episode(episode)).trained


@pytest.mark.parametrize("adapter", adapters())
async def test_a_step_behind_a_spent_budget_is_graded_as_it_stands(
    adapter: str, model_dir: str, tmp_path: Path
) -> None:
    task = write_steps(tmp_path / "task")
    (task / "steps/step-2/workdir").mkdir()
    (task / "steps/step-2/workdir/answer").write_text("undone\n")
    options = {"solved_when": {"/srv/answer": "done"}}
    episode = Episode(
        task, model_dir, Script((message(DONE),)), "harbor_gym.testing:FakeEnvironment", options, max_turns=1
    )
    assert await ADAPTERS[adapter](episode) == Played(0.5, EndReason.MAX_TURNS)


@pytest.mark.local
@pytest.mark.parametrize("adapter", adapters(but=("run_episode",)))
async def test_in_a_real_sandbox(adapter: str, model_dir: str, tmp_path: Path) -> None:
    episode = Episode(write_task(tmp_path / "task"), model_dir, REALLY_SOLVED, "local", {})
    played, reference = await ADAPTERS[adapter](episode), await by_run_episode(episode)
    assert played == reference == Played(1.0, EndReason.COMPLETED)
    assert played.trained == reference.trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", adapters())
async def test_a_real_sandbox_that_is_lost_when_it_is_graded(adapter: str, model_dir: str, tmp_path: Path) -> None:
    sandbox = "tests.helpers.sandboxes.failing:LostAtGrading"
    episode = Episode(write_task(tmp_path / "task"), model_dir, REALLY_SOLVED, sandbox, {})
    played = await ADAPTERS[adapter](episode)
    assert (played.reward, played.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert played.failure_kind == (await by_run_episode(episode)).failure_kind


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("adapter", adapters())
async def test_marks_in_output_open_no_turn(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    reads_marks = adapter in doors("marks in content")
    if reads_marks and name != "marks in output":
        return  # the script would count the forged turn
    script, budgets, _ = EPISODES[name]
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "tests.contract.players.episode:Vanishing"
    episode = Episode(write_task(tmp_path / "task"), model_dir, script, sandbox, options, **budgets)
    played = await ADAPTERS[adapter](episode)
    shown = [token for token, mask, _ in played.trained if not mask]
    tokenizer = byte_level_tokenizer()
    assert (FORGED if name == "marks in output" else TURN) in tokenizer.decode(shown)
    start, tag = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<tool_call>"])
    assert (shown.count(tag) > 0) is reads_marks
    assert reads_marks or shown.count(start) == 7


@pytest.mark.parametrize("adapter", adapters(but=doors("marks in content")))
async def test_marks_in_an_instruction_open_no_turn(adapter: str, model_dir: str, tmp_path: Path) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    task = write_task(tmp_path / "task", instruction=f"Write the word done into /srv/answer.\n{FORGED}\n")
    episode = Episode(task, model_dir, SOLVED, "harbor_gym.testing:FakeEnvironment", options)
    played = await ADAPTERS[adapter](episode)
    assert played == Played(1.0, EndReason.COMPLETED)
    assert played.trained == (await by_run_episode(episode)).trained
    tokenizer = byte_level_tokenizer()
    shown = [token for token, mask, _ in played.trained if not mask]
    assert FORGED in tokenizer.decode(shown)
    assert shown.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 7


@pytest.mark.parametrize("adapter", adapters())
async def test_thinking_quoted_in_a_command(adapter: str, model_dir: str, tmp_path: Path) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "harbor_gym.testing:FakeEnvironment"
    episode = Episode(write_task(tmp_path / "task"), model_dir, QUOTED, sandbox, options)
    played = await ADAPTERS[adapter](episode)
    assert played == Played(1.0, EndReason.COMPLETED)
    is_same = played.trained == (await by_run_episode(episode)).trained
    assert is_same is (adapter not in (*doors("thinking quoted in a command"), *doors("marks in content")))


def test_the_docs_have_every_difference_and_no_other() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| .+ \| (.+?) \|$", page, re.MULTILINE)
    named = {name: (set(re.findall("`([a-z-]+)`", places)), whose) for name, places, whose in rows}
    assert named == {name: (set(item.doors), item.whose) for name, item in DIFFERENCES.items()}
    assert set().union(*(item.doors for item in DIFFERENCES.values())) <= set(ADAPTERS)
