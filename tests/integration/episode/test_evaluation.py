"""Evaluations: the estimates are right, infrastructure never counts as the policy, and nothing runs unbounded."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason, TerminalEnvConfig
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.evaluation import (
    EpisodeResult,
    Player,
    evaluate,
    format_report,
    summarize,
    wilson,
)
from harbor_gym.testing import write_tiny_task
from harbor_gym.types import Sample
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.recipe_runs import expect_refused, run_recipe
from tests.helpers.tasks import write_task


def answer(commands: Sequence[str], *, complete: bool) -> Sample:
    typed = [{"keystrokes": command, "duration": 0.1} for command in commands]
    text = json.dumps({"analysis": "", "plan": "", "commands": typed, "task_complete": complete})
    return Sample([*map(ord, text), END], None)


async def solve(prompt: Sequence[int]) -> Sample:
    """Look, then solve the task."""
    solves = list(prompt).count(ASK) == 2
    return answer(["echo done > /srv/answer\n" if solves else "pwd\n"], complete=solves)


async def give_up(prompt: Sequence[int]) -> Sample:
    return answer([], complete=True)


def task(folder: Path, **sandbox: Any) -> TerminalEnvConfig:
    options = {"solved_when": {"/srv/answer": "done"}, **sandbox}
    write_tiny_task(folder)
    return TerminalEnvConfig(
        task_dir=folder,
        sandbox="harbor_gym.testing:FakeEnvironment",
        sandbox_options=options,
        confirm_task_complete=False,
    )


def player(sample: Any, **options: Any) -> Player:
    return Player(codec=CharacterCodec(), sample=sample, max_tokens=1000, **options)


class Engine:
    """A sampler over an engine that tells its context window."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.prompts: list[int] = []

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        self.prompts.append(len(prompt))
        return await solve(prompt)

    async def context_tokens(self) -> int | None:
        return self.window


@pytest.mark.local
async def test_an_interrupted_episode_of_a_token_policy_goes_on_token_by_token(tmp_path: Path) -> None:
    require_engine("local")
    config = TerminalEnvConfig(task_dir=write_task(tmp_path / "task"), sandbox="local", confirm_task_complete=False)
    prompts: list[list[int]] = []
    asked = asyncio.Event()

    async def work(prompt: Sequence[int]) -> Sample:
        prompts.append(list(prompt))
        if len(prompts) == 3:
            asked.set()
            await asyncio.Event().wait()
        commands = ["cd /tmp; x=41\n", "echo $((x+1)) > made; cat made\n", "echo done > /srv/answer\n"]
        turn = list(prompt).count(ASK) - 1
        return answer(commands[turn : turn + 1], complete=turn == 2)

    playing = asyncio.ensure_future(evaluate([config], player(work, transcripts_dir=tmp_path), episodes=1))
    async with asyncio.timeout(PATIENCE_SEC):
        await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    (result,) = await evaluate([config], player(work, transcripts_dir=tmp_path), episodes=1)
    assert len(prompts) == 4
    assert prompts[3] == prompts[2]
    assert (result.reward, result.turns, result.prompt_tokens) == (1.0, 3, len(prompts[2]))
    assert result.sampled_tokens > len(prompts[2]) - len(prompts[1]), "those of the first part count"
    assert not list(tmp_path.rglob("*.snapshot"))  # noqa: ASYNC240


async def test_an_episode_under_way_grows_on_disk_by_its_last_turn_alone(tmp_path: Path) -> None:
    kept: list[bytes] = []

    async def work(prompt: Sequence[int]) -> Sample:
        kept.extend(path.read_bytes() for path in tmp_path.rglob("*.snapshot"))  # noqa: ASYNC240
        return answer(["pwd\n"], complete=list(prompt).count(ASK) == 12)

    await evaluate([task(tmp_path / "task")], player(work, transcripts_dir=tmp_path), episodes=1)
    assert len(kept) == 11
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(kept))
    lines = [len(later) - len(earlier) for earlier, later in itertools.pairwise(kept)]
    assert max(lines) - min(lines) < 100, "a turn costs the same however many there were"


async def test_the_window_that_the_engine_tells_ends_an_episode(tmp_path: Path) -> None:
    engine = Engine(None)
    config = task(tmp_path / "task")
    (whole,) = await evaluate([config], player(engine), episodes=1)
    first, second = engine.prompts
    assert whole.end_reason is EndReason.COMPLETED
    engine = Engine(second - 1 + 1000)
    (cut,) = await evaluate([config], player(engine), episodes=1)
    assert (cut.end_reason, engine.prompts) == (EndReason.CONTEXT_OVERFLOW, [first])
    (own,) = await evaluate([config], player(engine, max_context_tokens=100_000), episodes=1)
    assert own.end_reason is EndReason.COMPLETED, "a limit of the player's own goes before it"


def result(name: str, number: int, reward: float | None) -> EpisodeResult:
    reason = EndReason.INFRASTRUCTURE_ERROR if reward is None else EndReason.COMPLETED
    return EpisodeResult(name, number, reward, reason, 3, 100, 30, 2.0, 1.0, None if reward is not None else "broke")


def test_tasks_count_the_same_and_infrastructure_errors_do_not_count() -> None:
    results = [result("a", n, reward) for n, reward in enumerate([1.0, 1.0, 0.0, None, None])]
    results += [result("b", n, reward) for n, reward in enumerate([0.0, 0.5])]
    report = summarize(results, ks=[1, 3])
    first, second = report.tasks
    assert (first.solved, first.episodes, first.infrastructure_errors) == (2, 3, 2)
    overall = report.overall.pass_at[1]
    assert overall is not None
    assert overall.value == pytest.approx((2 / 3 + 0) / 2)
    assert overall.low <= overall.value <= overall.high
    assert second.pass_at[3] is None, "two episodes give no estimate of three attempts"
    single = first.pass_at[1]
    assert single is not None
    assert (single.low, single.high) == pytest.approx(wilson(2, 3))
    assert report.overall.reward is not None
    assert report.overall.reward.value == pytest.approx((2 / 3 + 0.25) / 2)
    assert first.outcomes == {"completed": 3, "infrastructure_error": 2}
    assert summarize([result("a", 0, None)]).overall.reward is None
    assert summarize(results, threshold=0.5).tasks[1].solved == 1


async def test_every_task_is_played_and_distinguished(tmp_path: Path) -> None:
    tasks = [
        task(tmp_path / "open"),
        task(tmp_path / "shut", solved_when={"/srv/answer": "other"}),
        task(tmp_path / "broken", fail={"verifier": 1}),
    ]
    lines: list[str] = []
    kept = tmp_path / "kept"
    policy = player(solve, max_retries=2, transcripts_dir=kept)
    results = await evaluate(tasks, policy, episodes=2, on_episode=lambda item: lines.append(item.task))
    assert [(item.task, item.episode, item.reward) for item in results] == [
        *[("open", 1, 1.0), ("open", 2, 1.0), ("shut", 1, 0.0), ("shut", 2, 0.0)],
        *[("broken", 1, None), ("broken", 2, None)],
    ]
    assert sorted(lines) == sorted(item.task for item in results)
    assert [item.failed_attempts for item in results] == [0, 0, 0, 0, 2, 2]
    assert results[4].error is not None
    assert "VerifierError" in results[4].error
    assert results[0].turns == 2
    transcript = json.loads((kept / "test/batch_0000/open/episode_001.json").read_text())
    turns = transcript["turns"]
    assert results[0].sampled_tokens == sum(turn["sampled_tokens"] for turn in turns) > 0
    assert (
        turns[0]["prompt_tokens"] + turns[0]["sampled_tokens"] < turns[1]["prompt_tokens"] == results[0].prompt_tokens
    )
    report = summarize(results, ks=[1, 2])
    assert json.loads(json.dumps(report.as_object()))["overall"]["infrastructure_errors"] == 2
    rows = format_report(report).splitlines()
    assert rows[2].split("|")[2:4] == [" 2/2    ", " 1.00 [0.34, 1.00] "]
    assert "| broken | 0/0" in rows[4]
    assert "| all    | 2/4" in rows[5]


async def test_no_more_episodes_run_at_once_than_allowed(tmp_path: Path) -> None:
    running, most = 0, 0
    are_met = asyncio.Event()

    async def count(prompt: Sequence[int]) -> Sample:
        """Let the first ones wait for one another, and for one too many."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            await asyncio.sleep(0.05)
            are_met.set()
        await are_met.wait()
        running -= 1
        return await give_up(prompt)

    async with asyncio.timeout(PATIENCE_SEC):
        await evaluate([task(tmp_path / "t")], player(count), episodes=9, n_concurrent=3)
    assert most == 3


async def test_what_no_retry_can_repair_ends_the_evaluation_as_it_is(tmp_path: Path) -> None:
    async def broken(prompt: Sequence[int]) -> Sample:
        raise RuntimeError("no server")

    with pytest.raises(RuntimeError, match="no server"):
        await evaluate([task(tmp_path / "t")], player(broken), episodes=4)
    bad = TerminalEnvConfig(task_dir=tmp_path, sandbox="harbor_gym.testing:FakeEnvironment")
    with pytest.raises(TaskError):
        await evaluate([task(tmp_path / "t"), bad], player(solve), episodes=1)
    with pytest.raises(UsageError, match="different names"):
        await evaluate([task(tmp_path / "t")] * 2, player(solve), episodes=1)


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_real_task_is_evaluated_in_real_sandboxes() -> None:
    require_engine("local")
    config = TerminalEnvConfig(task_dir=ROOT / "tasks" / "devops_task", sandbox="local", confirm_task_complete=False)
    report = summarize(await evaluate([config], player(give_up), episodes=2))
    assert report.overall.outcomes == {"completed": 2}
    assert report.overall.solved == 0
    assert report.overall.seconds is not None
    assert report.overall.seconds > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "give --model and --base-url (a chat endpoint), --run, or --model-name"),
        (("--run", "nowhere", "--model-name", "m"), "are two policies"),
        (("--run", "nowhere"), "is no training run"),
        (("--model-name", "m", "--checkpoint", "7"), "no checkpoint '7'"),
        (("--model-name", "m"), "TINKER_API_KEY is not set"),
    ],
)
def test_the_recipe_reports_in_one_line_what_it_lacks(arguments: tuple[str, ...], expected: str) -> None:
    fake = "harbor_gym.testing:FakeEnvironment"
    env = {"TINKER_API_KEY": "tml-x"} if "--checkpoint" in arguments else {}
    expect_refused(run_recipe("eval", str(ROOT / "tasks/devops_task"), *arguments, "--env", fake, env=env), expected)
