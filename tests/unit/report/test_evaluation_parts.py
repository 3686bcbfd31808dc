"""The parts of an evaluation: players, the journal, the lines and the table, each to the letter."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from harbor_gym import EndReason, TerminalEnvConfig
from harbor_gym.errors import HarborGymError, SandboxLostError, SandboxStartError, UsageError
from harbor_gym.evaluation import (
    ChatPlayer,
    EpisodePlayer,
    EpisodeResult,
    Journal,
    Progress,
    RemotePlayer,
    describe_episode,
    evaluate,
    format_report,
    summarize,
)
from harbor_gym.evaluation.journal import forget
from harbor_gym.samplers import ChatEndpoint
from harbor_gym.samplers.chat import ChatAnswer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

WAIT_SEC = 0.05


class Model:
    """Answers as an open endpoint does, after a while."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatAnswer:
        await asyncio.sleep(WAIT_SEC)
        turn = sum(item["role"] == "assistant" for item in messages)
        text = self._answers[turn]
        answer = {"role": "assistant", "content": text}
        return ChatAnswer(text, answer, prompt_tokens=100 + turn, sampled_tokens=7 + turn)


def model(*answers: str) -> ChatEndpoint:
    return cast(ChatEndpoint, Model(*answers))


def config_of(folder: Path, **settings: Any) -> TerminalEnvConfig:
    return fake_config(folder, solved_when={"/srv/answer": "done"}, **settings)


def result_of(episode: int = 1, reward: float | None = 1.0, **fields: Any) -> EpisodeResult:
    settings: dict[str, Any] = {"end_reason": EndReason.COMPLETED, "turns": 3, "prompt_tokens": 20, "sampled_tokens": 9}
    settings |= {"task": "task", "seconds": 1.25, "sampling_sec": 0.5, **fields}
    return EpisodeResult(episode=episode, reward=reward, **settings)


# --- a model behind an endpoint ---------------------------------------------------------------------------------------


async def test_a_chat_episode_is_counted_to_the_token(tmp_path: Path) -> None:
    player = ChatPlayer(model(message("echo done > /srv/answer\n"), COMPLETE), transcripts_dir=tmp_path / "kept")
    result, error = await player.attempt(config_of(tmp_path / "task"), 5)
    assert error is None
    assert 2 * WAIT_SEC <= result.sampling_sec <= result.seconds < 60
    timed = {"seconds": result.seconds, "sampling_sec": result.sampling_sec}
    assert result == result_of(5, turns=2, prompt_tokens=101, sampled_tokens=15, **timed)
    (written,) = (tmp_path / "kept").rglob("*.json")
    assert written.relative_to(tmp_path / "kept").as_posix() == "test/batch_0000/task/episode_005.json"
    assert written.with_suffix(".cast").is_file()
    transcript = json.loads(written.read_text())
    assert (transcript["task"], transcript["group"], transcript["episode"]) == ("task", "task", 5)
    assert (transcript["reward"], transcript["error"]) == (1.0, None)
    assert [turn["action"] for turn in transcript["turns"]] == [message("echo done > /srv/answer\n"), COMPLETE]
    assert "terminal" in transcript["system_prompt"]


async def test_a_chat_episode_that_is_lost_has_no_reward(tmp_path: Path) -> None:
    player = ChatPlayer(model(), transcripts_dir=tmp_path / "kept")
    result, error = await player.attempt(config_of(tmp_path / "task", fail={"start": 1}), 1)
    assert isinstance(error, SandboxStartError)
    assert (result.reward, result.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert (result.turns, result.prompt_tokens, result.sampled_tokens, result.sampling_sec) == (0, 0, 0, 0.0)
    assert result.error == f"SandboxStartError: {error}"
    (written,) = (tmp_path / "kept").rglob("*.json")
    assert json.loads(written.read_text())["error"] == result.error


async def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    config = config_of(tmp_path / "task")
    before = everything_in(tmp_path)
    result, _ = await ChatPlayer(model(COMPLETE)).attempt(config, 1)
    assert (result.reward, ChatPlayer(model()).max_retries) == (0.0, 1)
    assert everything_in(tmp_path) == before


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


# --- in other processes -----------------------------------------------------------------------------------------------


class Loses(Executor):
    """Loses its workers so many times, and then plays."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._threads = ThreadPoolExecutor(1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self.left:
            return self._threads.submit(fn, *args, **kwargs)
        self.left -= 1
        future: Future[Any] = Future()
        future.set_exception(SandboxLostError("a call lost its worker 4 times"))
        return future


@contextlib.asynccontextmanager
async def opened() -> AsyncGenerator[EpisodePlayer]:
    yield ChatPlayer(model(message("echo done > /srv/answer\n"), COMPLETE))


async def test_an_executor_plays_what_the_player_would(tmp_path: Path) -> None:
    config = config_of(tmp_path / "task")
    results = await evaluate([config], RemotePlayer(Loses(0), opened), episodes=3)
    assert [(item.episode, item.reward, item.turns, item.prompt_tokens) for item in results] == [
        (number, 1.0, 2, 101) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("retries", [0, 2])
async def test_lost_workers_are_infrastructure_and_retried(tmp_path: Path, retries: int) -> None:
    executor = Loses(1)
    (result,) = await evaluate([config_of(tmp_path / "task")], RemotePlayer(executor, opened, retries), episodes=1)
    if retries:
        assert (result.reward, result.failed_attempts, result.error) == (1.0, 1, None)
        return
    lost = EndReason.INFRASTRUCTURE_ERROR
    numbers = {"turns": 0, "prompt_tokens": 0, "sampled_tokens": 0, "seconds": 0.0, "sampling_sec": 0.0}
    output = "SandboxLostError: a call lost its worker 4 times"
    assert result == result_of(1, None, end_reason=lost, error=output, **numbers)


async def test_what_no_retry_repairs_ends_the_evaluation(tmp_path: Path) -> None:
    def refuses() -> contextlib.AbstractAsyncContextManager[EpisodePlayer]:
        raise UsageError("the key is not set on this node")

    with pytest.raises(HarborGymError, match="not set on this node"):
        await evaluate([config_of(tmp_path / "task")], RemotePlayer(Loses(0), refuses), episodes=2)


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_a_journal_is_one_line_an_episode_and_goes_on(tmp_path: Path) -> None:
    folder, settings = tmp_path / "a" / "b", {"model": "m", "path": tmp_path}
    journal = Journal(folder, settings)
    assert journal.graded == []
    journal.add(result_of(0))
    journal.add(result_of(1, None, error="SandboxError: x"))
    assert journal.graded == [result_of(0)]
    head, first, second = (folder / "episodes.jsonl").read_text().splitlines()
    assert json.loads(head) == {"format": 2, "settings": {"model": "m", "path": str(tmp_path)}}
    assert json.loads(first)["end_reason"] == "completed"
    assert (json.loads(second)["reward"], json.loads(second)["error"]) == (None, "SandboxError: x")
    again = Journal(folder, settings)
    again.add(result_of(1, 0.0))
    assert Journal(folder, settings).graded == [result_of(0), result_of(1, 0.0)]


def test_a_journal_loses_the_line_that_a_kill_cut(tmp_path: Path) -> None:
    Journal(tmp_path, {}).add(result_of(0))
    path = tmp_path / "episodes.jsonl"
    whole = path.read_text()
    path.write_text(f'{whole}{{"task": "ha')
    journal = Journal(tmp_path, {})
    assert path.read_text() == whole
    journal.add(result_of(1))
    assert Journal(tmp_path, {}).graded == [result_of(0), result_of(1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("half a line", r"\(a, b differ\)"),
        ('{"format": 3, "settings": {"a": 1, "b": 2}}\n', r"its format differ\)"),
        ('{"format": 2, "settings": {"b": 3, "c": 1}}\n', r"\(a, b, c differ\): give another output folder"),
        ('{"format": 1}\n', r"\(a, b differ\)"),
        ("no JSON\n", "can't be read: Expecting value"),
    ],
)
def test_a_journal_of_something_else_is_refused_and_kept(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        Journal(tmp_path, {"a": 1, "b": 2})
    assert path.read_text() == (content if content.endswith("\n") else "")


def test_a_setting_within_another_is_named(tmp_path: Path) -> None:
    Journal(tmp_path, {"env": {"sandbox": "local", "max_turns": 3}})
    with pytest.raises(UsageError, match=r"\(env.max_turns differ\): give another output folder, or --fresh"):
        Journal(tmp_path, {"env": {"sandbox": "local", "max_turns": 4}})


def test_episodes_of_a_task_that_has_changed_are_refused_and_further_tasks_are_not(tmp_path: Path) -> None:
    Journal(tmp_path, {}, {"task": "a"}).add(result_of(0))
    assert Journal(tmp_path, {}, {"task": "a", "other": "b"}).graded == [result_of(0)]
    assert Journal(tmp_path, {}, {"other": "b"}).graded == [result_of(0)]
    with pytest.raises(UsageError, match="other versions of these tasks: task: give another output folder, or --fresh"):
        Journal(tmp_path, {}, {"task": "c"})
    (tmp_path / "notes").write_text("mine")
    forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert Journal(tmp_path, {}, {"task": "c"}).graded == []


# --- for people -------------------------------------------------------------------------------------------------------


def test_an_episode_is_a_line_and_the_count_goes_on() -> None:
    progress = Progress(5, 0.5, [result_of(0, 0.4), result_of(1, None)])
    assert (
        progress.line(result_of(2, 0.5)) == "[3/5, solved 1/2] episode 2 of task: completed, reward 0.5, 3 turns, 1.2 s"
    )
    lost = result_of(3, None, error="SandboxError: gone", seconds=61.0)
    assert progress.line(lost) == "[4/5, solved 1/2] episode 3 of task: lost: SandboxError: gone, 3 turns, 61.0 s"
    assert Progress(1, 1.0).line(result_of(0)) == f"[1/1, solved 1/1] {describe_episode(result_of(0))}"


def test_the_table_has_a_row_a_task_and_one_of_all() -> None:
    lost = result_of(2, None, end_reason=EndReason.INFRASTRUCTURE_ERROR)
    report = summarize([result_of(0), result_of(1), lost, result_of(0, 0.0, task="hard")], ks=(1, 2))
    head, _, easy, hard, everything, note = format_report(report).splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (head, easy, hard, everything)]
    assert cells[0] == ["task", "solved", "pass@1", "pass@2", "reward", "turns", "tokens", "seconds", "infra", "ended"]
    assert cells[1][:2] == ["task", "2/2"]
    assert cells[1][5:] == ["3.0", "9.0", "1.2", "1", "completed 2, infrastructure_error 1"]
    assert cells[2][:4] == ["hard", "0/1", cells[2][2], "-"]
    assert cells[2][8:] == ["0", "completed 1"]
    assert cells[3][:2] == ["all", "2/3"]
    assert cells[3][8:] == ["1", "completed 3, infrastructure_error 1"]
    assert note == "brackets: 95% intervals; solved: reward >= 1"
    assert report.overall.turns == 3.0
    assert len(format_report(summarize([result_of(0)])).splitlines()) == 4, "one task needs no row of all"


@pytest.mark.parametrize("name", ["devops_task", "a-name-of-a-task-that-is-quite-long-for-a-table"])
@pytest.mark.parametrize("ks", [(1,), (1, 4, 8)])
def test_a_terminal_has_the_report_within_its_columns(name: str, ks: tuple[int, ...]) -> None:
    results = [result_of(number, task=name) for number in range(1, 9)]
    lost = result_of(9, None, task=name, end_reason=EndReason.INFRASTRUCTURE_ERROR)
    for played in (results, [*results, lost]):
        lines = format_report(summarize(played, ks=ks), width=80).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0].split()[:3] == ["task", "solved", "pass@1"]
        assert ("infra" in lines[0]) == (lost in played)
        assert any(line.startswith("ended: completed 8") for line in lines)
        named = {*lines[0].split(), *lines[-1].replace(",", "").split()}
        assert {*(f"pass@{k}" for k in ks), "reward", "turns", "tokens", "seconds"} <= named, "all that is left out"
    nothing = summarize([result_of(0, None)])
    assert (nothing.overall.reward, nothing.overall.turns, nothing.overall.episodes) == (None, None, 0)
    assert "| -" in format_report(nothing)


def test_the_object_for_json_holds_everything() -> None:
    report = summarize([result_of(0), result_of(1, 0.25)], threshold=0.25)
    document = json.loads(json.dumps(report.as_object()))
    assert (document["format"], document["confidence"], document["threshold"]) == (1, 0.95, 0.25)
    assert [item["reward"] for item in document["episodes"]] == [1.0, 0.25]
    assert document["tasks"][0]["solved"] == document["overall"]["solved"] == 2
