"""The demonstrator sees the same observations as a policy, and its conversations are real ones."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, override

import pytest

from harbor_gym.embedded import demonstrator
from harbor_gym.embedded.demonstrations import half_solved, play_demonstrations, summary
from harbor_gym.embedded.demonstrator import (
    MOVES_PATH,
    WRITTEN_FORMATS,
    Demonstration,
    Demonstrator,
    Script,
    load_script,
    require_written,
)
from harbor_gym.errors import SandboxStartError, TaskError, UsageError
from harbor_gym.formats import parse_action, prompts
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.types import ActionFormat, EndReason
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT

DEVOPS = ROOT / "tasks" / "devops_task"
PROMPT = "root@sandbox:~# "

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def script() -> Script:
    return load_script(DEVOPS)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Edit], Path]:
    """Return a maker of copies of the task with another script."""

    def make(edit: Edit) -> Path:
        copy = tmp_path / "devops_task"
        shutil.copytree(DEVOPS, copy)
        content = json.loads((copy / MOVES_PATH).read_text())
        edit(content)
        (copy / MOVES_PATH).write_text(json.dumps(content))
        return copy

    return make


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the end of each command, however busy the machine is."""
    monkeypatch.setattr(demonstrator, "_DURATION_SEC", 30.0)


async def conversations_of(task_dir: Path, **options: Any) -> list[list[dict[str, str]]]:
    return [list(demonstration.messages) for demonstration in await play_demonstrations(task_dir, **options)]


def only(kind: str) -> Edit:
    """Keep the first move of that kind in each stage that has one."""

    def edit(content: dict[str, Any]) -> None:
        for stage in content["stages"].values():
            stage["moves"] = ([m for m in stage["moves"] if m["kind"] == kind] or stage["moves"])[:1]

    return edit


# -- the script ------------------------------------------------------------------------------------------------------


def test_every_move_is_a_short_message_in_one_form(script: Script) -> None:
    for stage in script.stages.values():
        for move in stage.moves:
            action = parse_action(move.text())
            assert (action.error, action.warning) == (None, None)
            assert [command.keystrokes for command in action.commands] == ([move.keystrokes] if move.keystrokes else [])
            assert action.task_complete is (move.keystrokes is None)
            assert re.match(r'\{"analysis":"[^"]+","plan":"[^"]+","commands":\[.*\],"task_complete":', move.text())
            assert max(len(move.analysis.split()), len(move.plan.split())) <= 4


def test_a_move_as_keystrokes_types_the_same(script: Script) -> None:
    for move in [move for stage in script.stages.values() for move in stage.moves]:
        action = parse_action(move.text(ActionFormat.KEYSTROKES), format=ActionFormat.KEYSTROKES)
        assert action.error is None
        assert [command.keystrokes for command in action.commands] == ([move.keystrokes] if move.keystrokes else [])
        assert action.task_complete is (move.keystrokes is None)


def test_a_format_without_demonstrations_names_those_with_some() -> None:
    with pytest.raises(UsageError, match=r"bash-tool.*terminus-json-plain or keystrokes"):
        require_written(ActionFormat.BASH_TOOL)


def test_a_task_without_a_script_reports_what_to_do(task_dir: Path) -> None:
    with pytest.raises(TaskError, match=r"no demonstrations/moves\.json.*--model-name"):
        load_script(task_dir)


MALFORMED: list[tuple[Edit, str]] = [
    (lambda s: s.update(format_version=2), "format_version"),
    (lambda s: s.update(first_stage="nowhere"), "no such stage: nowhere"),
    (lambda s: s["stages"]["start"]["moves"][0].update(next="nowhere"), "no such stage: nowhere"),
    (lambda s: s["stages"]["key"].update(seen="(unclosed"), "not a regular expression"),
    (lambda s: s["stages"]["key"].update(moves=[]), "stages.key.moves"),
    (lambda s: s["stages"]["key"]["moves"][0].update(weight=0), "weight"),
    (lambda s: s["stages"]["key"]["moves"][0].update(keystroke="ls"), "keystroke"),
]


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ("00010011", "0123467"),
        ("11110000", "0145"),
        ("00000000", "0123"),
        ("11111111", "0123"),
        ("00000001", "0127"),
        ("11111110", "0127"),
    ],
)
def test_half_of_what_a_pretrained_model_learns_was_solved(rewards: str, kept: str) -> None:
    """In the order in which they were played, and as many as are asked for where there are fewer solved ones."""
    played = [Demonstration((), float(reward), turn, EndReason.COMPLETED) for turn, reward in enumerate(rewards)]
    count = len(kept)
    assert "".join(str(item.turns) for item in half_solved(played, count)) == kept


@pytest.mark.parametrize(("edit", "complaint"), MALFORMED)
def test_a_malformed_script_is_a_task_error(edited: Callable[[Edit], Path], edit: Edit, complaint: str) -> None:
    with pytest.raises(TaskError, match=re.escape(complaint)):
        load_script(edited(edit))


def test_a_script_that_is_no_json_is_a_task_error(edited: Callable[[Edit], Path]) -> None:
    task = edited(lambda _: None)
    (task / MOVES_PATH).write_text("stages:")
    with pytest.raises(TaskError, match="Invalid JSON"):
        load_script(task)


# -- the demonstrator ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "stage"),
    [
        ("", "start"),
        ("app: running already? /srv/app/app.pid has pid 1", "pid"),
        ("app: pid 1 in /srv/app/app.pid is another program", "pid"),
        ("app: /etc/app/key has mode 777, not 600", "key"),
        ("app: no spool /var/spool/ap", "spool"),
        ("app: no key /etc/appp/key", "lost"),
        ("app: no program /srv/app/serve", "lost"),
        ("app: up, spool /var/spool/ap", "trap"),
        ("app: up, spool /var/spool/app", "up"),
        ("01:10 up, spool /var/spool/app", "start"),
    ],
)
def test_the_screen_decides_what_comes_next(script: Script, seen: str, stage: str) -> None:
    observation = f"[exit code 1]\n{PROMPT}appctl start\n{seen}\n{PROMPT}"
    moves = {Demonstrator(script, random.Random(seed)).answer(observation).text() for seed in range(300)}
    assert moves == {move.text() for move in script.stages[stage].moves}


def test_without_news_the_own_last_move_decides(script: Script) -> None:
    for seed in range(300):
        player = Demonstrator(script, random.Random(seed))
        first = player.answer(PROMPT)
        if first.keystrokes is not None:
            assert player.answer(PROMPT) in script.stages[first.next or "start"].moves


def test_a_declaration_is_confirmed(script: Script) -> None:
    for seed in range(50):
        player = Demonstrator(script, random.Random(seed))
        declared = player.answer("app: up, spool /var/spool/app")
        if declared.keystrokes is None:
            assert player.answer(prompts.confirmation_request(PROMPT)) is declared


# -- in the real environment -----------------------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.parametrize("action_format", WRITTEN_FORMATS)
@pytest.mark.usefixtures("patient")
async def test_a_conversation_is_what_the_policy_will_see(
    edited: Callable[[Edit], Path], action_format: ActionFormat, nothing_left: None
) -> None:
    require_engine("local")
    task = edited(only("good"))
    [played] = await play_demonstrations(task, sandbox="local", episodes=1, action_format=action_format)
    assert (played.reward, played.turns, played.end_reason) == (1.0, 5, EndReason.COMPLETED)
    system, first, *turns = played.messages
    instruction = (DEVOPS / "instruction.md").read_text()
    assert system == {"role": "system", "content": prompts.system_prompt(action_format)}
    assert first == {"role": "user", "content": prompts.first_message(instruction, PROMPT.strip())}
    assert [turn["role"] for turn in turns] == ["assistant", "user"] * 4 + ["assistant"]
    screens = [turn["content"] for turn in turns if turn["role"] == "user"]
    assert "has mode 644" in screens[0]
    assert "no spool /var/spool/ap\n" in screens[1]
    assert "app: up, spool /var/spool/app\n" in screens[2]
    assert screens[3] == prompts.confirmation_request(PROMPT.strip(), action_format)


@pytest.mark.local
@pytest.mark.parametrize(
    ("kind", "reward", "turns", "reason"),
    [
        ("dawdle", 0.0, 10, EndReason.MAX_TURNS),
        ("mistake", 0.0, 3, EndReason.COMPLETED),
    ],
)
@pytest.mark.usefixtures("patient")
async def test_the_true_environment_grades_it(
    edited: Callable[[Edit], Path], nothing_left: None, kind: str, reward: float, turns: int, reason: EndReason
) -> None:
    require_engine("local")
    [played] = await play_demonstrations(edited(only(kind)), sandbox="local", episodes=1)
    assert (played.reward, played.turns, played.end_reason) == (reward, turns, reason)


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_the_demonstrator_leaves_something_to_learn_and_the_seed_alone_decides(nothing_left: None) -> None:
    """An episode's choices depend on the seed and the episode's number: some episodes show how many do."""
    require_engine("local")
    progress: list[tuple[int, int]] = []

    def note(done: int, asked: int) -> None:
        progress.append((done, asked))

    played = await play_demonstrations(DEVOPS, sandbox="local", episodes=20, seed=0, concurrency=3, progress=note)
    line = summary(played)
    assert 0.2 <= fmean(item.reward for item in played) <= 0.4, line
    assert 6.5 <= fmean(item.turns for item in played) <= 7.8, line
    assert fmean(item.turns for item in played if item.reward == 1) <= 6, line
    assert line.startswith("20 episodes, ")
    assert progress == [(done, 20) for done in range(1, 21)]
    narrow = await conversations_of(DEVOPS, sandbox="local", episodes=3, seed=0, concurrency=1)
    other = await conversations_of(DEVOPS, sandbox="local", episodes=3, seed=4)
    wide = [list(item.messages) for item in played[:3]]
    assert wide == narrow
    assert wide != other


class FailsFirst(LocalEnvironment):
    """A sandbox that does not start the first ``failures`` times."""

    failures: ClassVar[int] = 0

    @override
    async def start(self, force_build: bool) -> None:
        if FailsFirst.failures > 0:
            FailsFirst.failures -= 1
            raise SandboxStartError("injected: the sandbox does not start")
        await super().start(force_build)


@pytest.mark.local
@pytest.mark.usefixtures("patient")
async def test_an_episode_survives_two_lost_sandboxes(nothing_left: None, caplog: pytest.LogCaptureFixture) -> None:
    require_engine("local")
    FailsFirst.failures = 2
    flaky = await conversations_of(DEVOPS, sandbox=f"{__name__}:FailsFirst", episodes=1)
    assert FailsFirst.failures == 0
    assert caplog.text.count("injected") >= 2
    assert flaky == await conversations_of(DEVOPS, sandbox="local", episodes=1)


@pytest.mark.local
async def test_a_sandbox_that_never_starts_is_reported(nothing_left: None) -> None:
    require_engine("local")
    FailsFirst.failures = 1000
    with pytest.raises(SandboxStartError, match="injected"):
        await conversations_of(DEVOPS, sandbox=f"{__name__}:FailsFirst", episodes=4)


@pytest.mark.docker
@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_docker_shows_the_same_conversation(edited: Callable[[Edit], Path]) -> None:
    require_engine("docker")
    require_engine("local")
    task = edited(only("good"))
    conversations = [await conversations_of(task, sandbox=name, episodes=1) for name in ("docker", "local")]
    docker, local = (re.sub(r"root@\w+:", "root@HOST:", json.dumps(conversation)) for conversation in conversations)
    assert docker == local
