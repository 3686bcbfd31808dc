"""Copies of a running episode by replay, in memory."""

import asyncio
import itertools
import json
import pickle
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, override

import gymnasium
import pytest

from harbor_gym import (
    AsyncTerminalGymEnv,
    EndReason,
    ForkDivergedError,
    Sample,
    Snapshot,
    TerminalEnvConfig,
    TerminalEnvWrapper,
    TokenTerminalEnv,
    run_episode,
)
from harbor_gym.config import snapshot as snapshot_module
from harbor_gym.config.snapshot import SnapshotFile
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.pool import WarmPool
from harbor_gym.report import summaries
from harbor_gym.testing import FakeEnvironment
from harbor_gym.transcripts import read_transcript, write_transcript
from harbor_gym.types import Transcript
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

WRITE, READ = [("echo one > a; cd /tmp; x=5\n", 1.0)], [("cat /srv/a; pwd; echo $x\n", 1.0)]


class Counted(FakeEnvironment):
    """Counts its sandboxes; ``tick`` prints another number in each of them, and ``drift`` one from the third on."""

    running: ClassVar[set[Any]] = set()
    started: ClassVar[int] = 0
    most: ClassVar[int | None] = None
    """Sandboxes that may start."""

    stuck: ClassVar[asyncio.Event | None] = None
    """Set when a sandbox is at ``wait`` for good; None where ``wait`` prints a word."""

    number = 0

    @override
    async def start(self, force_build: bool) -> None:
        type(self).started += 1
        if self.most is not None and self.started > self.most:
            raise SandboxStartError("no room for another one")
        await super().start(force_build)
        self.number = self.started
        self.running.add(self)

    @override
    async def stop(self, delete: bool) -> None:
        await super().stop(delete)
        self.running.discard(self)

    @override
    def answer(self, command: str) -> Any:
        match command.strip():
            case "tick":
                return f"{self.number}\n"
            case "drift":
                return "3\n" if self.number >= 3 else "1\n"
            case _:
                return super().answer(command)

    @override
    def programs(self) -> Any:
        return {"wait": self._wait}

    async def _wait(self, *_: Any) -> int:
        if self.stuck is not None:
            self.stuck.set()
            await asyncio.sleep(3600)
        return 0


@pytest.fixture(autouse=True)
def counted() -> Any:
    """Begin to count anew."""
    Counted.running, Counted.started, Counted.most, Counted.stuck = set(), 0, None, None
    return Counted


def config_of(tmp_path: Path, **settings: Any) -> TerminalEnvConfig:
    return fake_config(tmp_path / "task", sandbox=f"{__name__}:Counted", **settings)


@asynccontextmanager
async def closing(*envs: Any) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        for env in envs:
            await env.close()


async def started(config: TerminalEnvConfig, *actions: Any) -> AsyncTerminalGymEnv:
    env = AsyncTerminalGymEnv(config)
    await env.reset()
    for action in actions:
        await env.step(action)
    return env


async def test_copies_stand_where_the_episode_does_and_share_nothing(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path), WRITE)
    first, second = copies = await parent.fork(2)
    async with closing(parent, *copies):
        seen = await parent.step(READ)
        assert seen.observation.splitlines()[-4:-1] == ["one", "/tmp", "5"]
        assert (await first.step(READ)).observation == seen.observation
        await first.step([("echo two > /srv/a\n", 1.0)])
        assert (await second.step(READ)).observation == seen.observation
        assert (await parent.step(READ)).observation == seen.observation
        assert len(Counted.running) == 3
    assert not Counted.running


async def test_each_copy_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    config = config_of(tmp_path, solved_when={"/srv/a": "done"}, trials_dir=tmp_path / "trials")
    parent = await started(config, message("true\n"))
    solved, failed = await parent.fork(2)
    async with closing(parent):
        ends = [
            await env.step(message(f"echo {word} > /srv/a\n", complete=True))
            for env, word in ((solved, "done"), (failed, "undone"), (parent, "done"))
        ]
    assert [end.reward for end in ends] == [1.0, 0.0, 1.0]
    assert [end.info.get("fork_mode") for end in ends] == ["replay", "replay", None]
    folders = {end.info.get("trial_dir") for end in ends}
    assert len(folders) == 3
    for folder in folders:
        assert folder is not None
        steps = json.loads((folder / "agent/trajectory.json").read_text())["steps"]
        assert len(steps) == 3, "instruction, the common turn, and its own"
        recording = (folder / "recording.cast").read_text()
        assert '"1: true' in recording
        assert '"2: echo' in recording


async def test_the_first_reset_of_a_copy_tells_how_it_stands(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path))
    last = await parent.step(WRITE)
    (copy,) = await parent.fork(1)
    async with closing(parent, copy):
        before = Counted.started
        observation, info = await copy.reset()
        assert Counted.started == before, "it had begun"
        assert observation == last.observation
        assert (info["turn"], info.get("fork_mode")) == (1, "replay")
        assert info.get("instruction")
        assert info["metrics"]["time/replay_sec"] >= 0
        await copy.step([("echo other > /srv/a\n", 1.0)])
        assert (await copy.reset())[0] == last.observation
        assert Counted.started == before + 1
        assert "one" in (await copy.step(READ)).observation


async def test_what_the_episode_used_counts_in_the_copy(tmp_path: Path) -> None:
    parent = await started(
        config_of(tmp_path, max_turns=4, confirm_task_complete=True, max_consecutive_parse_failures=2, time_limit_sec=9)
    )
    for action in (message("true\n"), message(complete=True)):
        await parent.step(action)
    (pending,) = await parent.fork(1)
    assert pending.remaining == parent.remaining, "to the nanosecond: the episode's time, not the replay's"
    assert 0 < parent.remaining[1] < 1
    end = await pending.step(message(complete=True))
    assert end.info.get("end_reason") is EndReason.COMPLETED, "the question had been asked before"
    await parent.step("no json")
    (unread,) = await parent.fork(1)
    assert (await unread.step("again none")).info.get("end_reason") is EndReason.PARSE_FAILURES
    (last,) = await parent.fork(1)
    assert (await last.step(message("true\n"))).info.get("end_reason") is EndReason.MAX_TURNS
    await parent.close()


async def test_steps_that_were_paid_are_paid_in_the_copy(tmp_path: Path) -> None:
    config = config_of(tmp_path, steps=2, step_rewards=True, solved_when={"/srv/a": "done"})
    parent = await started(config, message("echo done > /srv/a\n", complete=True))
    (copy,) = await parent.fork(1)
    _, info = await copy.reset()
    assert info.get("instruction") == "Do step-2.\n"
    end = await copy.step(message("echo undone > /srv/a\n", complete=True))
    assert (end.info.get("episode_reward"), end.reward) == (0.5, 0.0)
    await parent.close()


async def test_a_difference_names_its_turn_and_leaves_no_copy(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path), WRITE, [("tick\n", 1.0)], READ)
    with pytest.raises(ForkDivergedError, match=r"turn 2 .*line 2 was '1' and is '\d'") as caught:
        await parent.fork(3)
    assert caught.value.turn == 2
    assert "\n-1\n+" in caught.value.diff
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.turn, again.diff, str(again)) == (2, caught.value.diff, str(caught.value))
    assert len(Counted.running) == 1
    assert not (await parent.step(READ)).done, "the parent goes on"
    await parent.close()


async def test_where_one_copy_differs_the_equal_ones_are_closed(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path), [("drift\n", 1.0)])
    with pytest.raises(ForkDivergedError):
        await parent.fork(3)
    assert len(Counted.running) == 1
    await parent.close()


async def test_where_one_copy_does_not_start_there_is_none(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path), WRITE)
    Counted.most = 3
    with pytest.raises(SandboxStartError):
        await parent.fork(4)
    assert len(Counted.running) == 1
    await parent.close()


async def test_a_cancelled_fork_leaves_no_sandbox(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path), WRITE, [("wait\n", 1.0)])
    Counted.stuck = asyncio.Event()
    forking = asyncio.ensure_future(parent.fork(2))
    await Counted.stuck.wait()
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert len(Counted.running) == 1
    await parent.close()


async def test_a_copy_of_a_copy_of_a_copy(tmp_path: Path) -> None:
    env = await started(config_of(tmp_path), WRITE)
    line = [env]
    for number in range(3):
        (env,) = await env.fork(1)
        line.append(env)
        await env.step([(f"echo {number} >> /srv/a\n", 1.0)])
    async with closing(*line):
        assert "one\n0\n1\n2\n" in (await line[-1].step(READ)).observation
        assert "one\n0\n/tmp" in (await line[1].step(READ)).observation
        assert (await line[-1].snapshot()).turn == 5


async def test_a_snapshot_is_read_from_disk_and_begins_an_episode(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "snapshot.json"
    config = config_of(tmp_path, max_turns=5)
    parent = await started(config, WRITE, message("echo 'ü' ; true\n"))
    snapshot = await parent.snapshot()
    snapshot.write(path)
    seen = (await parent.step(READ)).observation
    await parent.close()
    read = Snapshot.read(path)
    assert (read.turn, read.observation, read.task_digest) == (2, snapshot.observation, snapshot.task_digest)
    assert read.config == snapshot.config
    assert [turn.commands for turn in read.turns] == [turn.commands for turn in snapshot.turns]
    for start in (path, str(path), read, snapshot):
        whole = TerminalEnvConfig.model_validate({"start_from": start})
        assert whole.max_turns == 5, "what is not given is the snapshot's"
        async with AsyncTerminalGymEnv(whole) as env:
            observation, info = await env.reset()
            assert (observation, info["turn"]) == (snapshot.observation, 2)
            assert (await env.step(READ)).observation == seen
    async with AsyncTerminalGymEnv(config.model_copy(update={"start_from": read.at(0)})) as env:
        await env.reset()
        assert "cat: /srv/a" in (await env.step(READ)).observation


async def test_a_snapshot_does_not_change_with_its_episode(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path))
    result = await parent.step(WRITE)
    snapshot = await parent.snapshot()
    result.info["metrics"]["time/step_sec"] = 1e9
    await parent.step(READ)
    assert snapshot.turn == 1
    assert snapshot.turns[0].info["metrics"]["time/step_sec"] < 1e9
    await parent.close()


async def test_what_does_not_fit_a_snapshot_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    parent = await started(config, WRITE, READ)
    snapshot = await parent.snapshot()
    await parent.close()
    for change, words in (
        ({"action_format": "keystrokes"}, "action_format differ"),
        ({"max_turns": 2}, "max_turns is 2, and the snapshot has 2 turns"),
    ):
        other = TerminalEnvConfig.model_validate({"start_from": snapshot, **change})
        with pytest.raises(UsageError, match=words):
            await AsyncTerminalGymEnv(other).reset()
    (config.task_dir / "instruction.md").write_text("Do something else.\n")
    with pytest.raises(UsageError, match="another task"):
        await AsyncTerminalGymEnv(TerminalEnvConfig.model_validate({"start_from": snapshot})).reset()
    assert Counted.started == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "can't be read"),
        ('{"format": 1}', "is not a transcript of format 2"),
        ('{"format": 2}', r"is not a complete transcript \(KeyError\('turns'\)\)"),
        ('{"format": 2, "turns": [3]}', "is not a complete transcript"),
        (None, "can't be read: it is not there"),
    ],
)
def test_a_file_that_is_no_snapshot_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words):
        Snapshot.read(path)


async def test_what_no_replay_repeats_has_no_snapshot(tmp_path: Path) -> None:
    parent = AsyncTerminalGymEnv(config_of(tmp_path, steps=2))
    async with parent:
        with pytest.raises(UsageError, match=r"call reset\(\) first"):
            await parent.snapshot()
        await parent.reset()
        await parent.exec("true", timeout_sec=1)
        with pytest.raises(UsageError, match="exec was called"):
            await parent.fork(2)
        await parent.reset()
        await parent.finish()
        with pytest.raises(UsageError, match="finish was called"):
            await parent.fork(2)


async def test_modes_and_counts_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    parent = await started(config_of(tmp_path))
    with pytest.raises(UsageError, match="local sandbox with the option forkable"):
        await parent.fork(1, mode="exact")
    with pytest.raises(UsageError, match="auto, replay or exact"):
        await parent.fork(1, mode="other")  # pyright: ignore[reportArgumentType]  # a caller without types may give it
    with pytest.raises(UsageError, match="at least 1"):
        await parent.fork(0)
    assert Counted.started == 1
    await parent.close()


async def test_a_recording_is_its_episodes_alone(tmp_path: Path) -> None:
    path = tmp_path / "episode.cast"
    parent = await started(config_of(tmp_path, recording_path=path), WRITE)
    (copy,) = await parent.fork(1)
    async with closing(parent, copy):
        await copy.step([("echo copied\n", 1.0)])
        await parent.step(READ)
    assert "copied" not in path.read_text()
    assert '"2: cat' in path.read_text()


async def test_copies_take_their_sandboxes_from_the_pool(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with WarmPool(config, size=2) as pool:
        parent = AsyncTerminalGymEnv(config, pool=pool)
        await parent.reset()
        await parent.step(WRITE)
        copies = await parent.fork(2)
        async with closing(parent, *copies):
            for env in copies:
                assert "pool/hit" in (await env.reset())[1]["metrics"]
                assert "one" in (await env.step(READ)).observation
    assert not Counted.running


# -- tokens ----------------------------------------------------------------------------------------------------------


class Marking(CharacterCodec):
    """Reads tokens that it would write otherwise: a text that is tokenised again is seen."""

    @override
    def text(self, sampled: Any) -> str:
        return super().text([token for token in sampled if token < 10**6])


def said(text: str) -> list[int]:
    return [*map(ord, text), 10**6, END]


def token_env(config: TerminalEnvConfig, env: Any = None) -> TokenTerminalEnv:
    return TokenTerminalEnv(env or AsyncTerminalGymEnv(config), Marking(), max_tokens=100)


async def test_copies_have_the_tokens_of_the_episode(tmp_path: Path) -> None:
    config = config_of(tmp_path, solved_when={"/srv/a": "done"})
    parent = token_env(config)
    await parent.reset()
    prompt = (await parent.step(said(message("echo one > a\n")), logprobs=[-1.0])).observation
    copies = await parent.fork(2)
    words = ("done", "undone")
    rollouts: list[Any] = []
    for copy, word in zip(copies, words, strict=True):

        async def sample(given: Any, word: str = word) -> Sample:
            assert list(given) == prompt, "token by token"
            return Sample(said(message(f"echo {word} > a\n", complete=True)))

        rollouts.append(await run_episode(copy, sample))
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    for rollout in rollouts:
        assert [list(item.prompt) for item in rollout.transitions] == [prompt]
        assert [turn.sampled_tokens > 0 for turn in rollout.turns] == [True, True]
        assert rollout.transcript.start_info.get("fork_mode") == "replay"
    assert len(parent.transcript.turns) == 1
    assert (await parent.step(said(message("cat a\n")))).observation[: len(prompt)] == prompt
    await parent.close()


async def test_a_copy_may_be_stepped_at_once_and_begin_again(tmp_path: Path) -> None:
    parent = token_env(config_of(tmp_path))
    await parent.reset()
    prompt = (await parent.step(said(message("echo one > a\n")))).observation
    (copy,) = await parent.fork(1)
    assert (await copy.step(said(message("cat a\n")))).observation[: len(prompt)] == prompt
    again = await copy.reset()
    assert again.observation == prompt
    assert len(copy.transcript.turns) == 1
    await copy.close()
    await parent.close()


async def test_a_snapshot_with_tokens_goes_on_from_disk(tmp_path: Path) -> None:
    config, path = config_of(tmp_path), tmp_path / "snapshot.json"
    parent = token_env(config)
    first = (await parent.reset()).observation
    prompt = (await parent.step(said(message("echo one > a\n")))).observation
    (await parent.snapshot()).write(path)
    await parent.close()
    later = token_env(TerminalEnvConfig.model_validate({"start_from": path}))
    assert (await later.reset()).observation == prompt
    assert [turn.sampled_tokens for turn in later.transcript.turns] == [len(said(message("echo one > a\n")))]
    await later.close()
    read = Snapshot.read(path)
    earlier = token_env(TerminalEnvConfig.model_validate({"start_from": read.at(0)}))
    assert (await earlier.reset()).observation == first
    await earlier.close()
    without = TerminalEnvConfig.model_validate({"start_from": replace(read, tokens=None)})
    with pytest.raises(UsageError, match="the file has no tokens"):
        await token_env(without).reset()
    assert not Counted.running


async def test_a_start_on_disk_is_read_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = tmp_path / "snapshot.json", list[Path]()
    parent = token_env(config_of(tmp_path))
    await parent.reset()
    (await parent.snapshot()).write(path)
    await parent.step(said(message("echo one > a\n")))
    later = await parent.snapshot()
    await parent.close()

    def count(read: Path) -> tuple[Transcript, dict[str, Any]]:
        reads.append(read)
        return read_transcript(read)

    monkeypatch.setattr(snapshot_module, "read_transcript", count)
    for turn in (0, 1):
        for _ in range(2):
            env = token_env(TerminalEnvConfig.model_validate({"start_from": path}))
            await env.reset()
            assert len(env.transcript.turns) == turn
            await env.close()
        assert reads == [path.resolve()] * (turn + 1)
        later.write(path)


async def test_an_episodes_transcript_is_a_snapshot_before_its_last_turn(tmp_path: Path) -> None:
    env = token_env(config_of(tmp_path, solved_when={"/srv/a": "one"}))

    async def sample(given: Any) -> Sample:
        asked = list(given).count(ASK)
        return Sample(said(message("echo one > a\n") if asked < 3 else COMPLETE))

    rollout = await run_episode(env, sample)
    path = tmp_path / "run" / "transcripts" / "test" / "episode_001.json"
    write_transcript(path, rollout.transcript, labels={})
    snapshot = Snapshot.read(path)
    assert snapshot.turn == 2
    for turn in (2, 1, 0):
        start = TerminalEnvConfig.model_validate({"start_from": snapshot.at(turn)})
        async with AsyncTerminalGymEnv(start) as later:
            assert (await later.reset())[1]["turn"] == turn
            end = await later.step(COMPLETE)
            assert end.reward == (1.0 if turn else 0.0)
        in_tokens = token_env(start)
        assert (await in_tokens.reset()).observation == rollout.transitions[turn].prompt, "token by token"
        await in_tokens.close()
    shown = summaries.read_transcript(path, tmp_path / "run")
    assert shown is not None
    assert not {"settings", "tokens"} & set(shown)
    document = json.loads(path.read_text())
    older = {name: value for name, value in document.items() if name != "tokens"}
    path.write_text(json.dumps(older))
    start = TerminalEnvConfig.model_validate({"start_from": path})
    async with AsyncTerminalGymEnv(start) as later:
        assert (await later.reset())[1]["turn"] == 2
    with pytest.raises(UsageError, match="the file has no tokens"):
        await token_env(start).reset()
    path.write_text(json.dumps({**document, "settings": None}))
    with pytest.raises(UsageError, match="lacks its episode's configuration"):
        Snapshot.read(path)


@pytest.mark.parametrize("end", [EndReason.BATCH_DEADLINE, EndReason.MAX_TOKENS, EndReason.CONTEXT_OVERFLOW])
async def test_a_cut_episode_goes_on_from_the_prompt_of_its_last_answer(tmp_path: Path, end: EndReason) -> None:
    env = token_env(config_of(tmp_path))
    await env.reset()
    prompt = (await env.step(said(message("echo one > a\n")))).observation
    if end is EndReason.MAX_TOKENS:
        await env.step(said(message("cat a\n")), stop_reason="length")
    elif end is EndReason.CONTEXT_OVERFLOW:
        env.limit_context(len(prompt) + 100)
        assert (await env.step(said(message("cat a\n")))).done
    else:
        await env.step(said(message("cat a\n")))
        await env.truncate(end)
    await env.close()
    path = tmp_path / "episode.json"
    write_transcript(path, env.transcript, labels={})
    later = token_env(TerminalEnvConfig.model_validate({"start_from": path}))
    assert (await later.reset()).observation == prompt
    await later.close()


async def test_another_models_tokens_are_refused(tmp_path: Path) -> None:
    class Shifted(Marking):
        """Has another number for each letter."""

        @override
        def text(self, sampled: Any) -> str:
            return super().text([token + self.shift if token < 10**6 else token for token in sampled])

        shift = 1

    env = token_env(config_of(tmp_path))
    await env.reset()
    await env.step(said(message("echo one > a\n")))
    start = TerminalEnvConfig.model_validate({"start_from": await env.snapshot()})
    await env.close()
    for Shifted.shift in (1, -1000):  # the second leads out of the readable text
        with pytest.raises(UsageError, match="tokens of turn 1 do not decode to its answer"):
            await TokenTerminalEnv(AsyncTerminalGymEnv(start), Shifted(), max_tokens=100).reset()
    assert Counted.started == 1


async def test_an_episode_is_kept_turn_by_turn_and_read_where_a_kill_cut_it(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "episode.snapshot"
    env, file, known = token_env(config_of(tmp_path)), SnapshotFile(path), list[tuple[Snapshot, bytes]]()
    await env.reset()
    for number, text in enumerate(("echo 'one ü \u2028' > a\n", "cat a\n", "pwd\n"), start=1):
        await env.step(said(message(text)), version=number)
        chat = tuple({"role": "user", "content": f"{turn} ü"} for turn in range(2 * number))
        snapshot = replace(await env.snapshot(), messages=chat)
        file.keep(snapshot)
        known.append((snapshot, path.read_bytes()))
    await env.close()
    for (earlier, before), (later, after) in itertools.pairwise(known):
        assert after.startswith(before), "nothing is written anew"
        for cut in (*range(len(before), len(after) - 1, 50), len(after) - 1, len(after)):
            path.write_bytes(after[:cut])
            read, kept = Snapshot.read(path), later if cut == len(after) else earlier
            assert (read.tokens, read.messages, read.observation) == (kept.tokens, kept.messages, kept.observation)
            assert [(turn.action, turn.version) for turn in read.turns] == [
                (turn.action, turn.version) for turn in kept.turns
            ]
    file = SnapshotFile(path)
    file.keep(known[0][0])
    assert Snapshot.read(path).turn == 1, "another attempt begins the file anew"


class Costly(TerminalEnvWrapper):
    """Takes something for each step, and counts them."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps: list[int] = []

    @override
    async def step(self, action: Any) -> Any:
        self.steps.append(1)
        result = await super().step(action)
        return result._replace(reward=result.reward - 0.25, observation=f"{result.observation}!")


async def test_a_wrapper_is_copied_with_its_state(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    parent = token_env(config, Costly(AsyncTerminalGymEnv(config)))
    await parent.reset()
    prompt = (await parent.step(said(message("true\n")))).observation
    assert prompt[-3] == ord("!")
    (copy,) = await parent.fork(1)

    async def sample(given: Any) -> Sample:
        assert list(given) == prompt
        return Sample(said(COMPLETE))

    rollout = await run_episode(copy, sample)
    assert rollout.reward == 0.5
    assert (len(parent.env.steps), len(copy.env.steps)) == (1, 2)  # pyright: ignore[reportAttributeAccessIssue]  # Costly's
    assert prompt[-1] == ASK
    await parent.close()


async def test_an_environment_that_can_copy_none_says_so(tmp_path: Path) -> None:
    class Elsewhere:
        """An environment of another machine."""

        def __init__(self, env: Any) -> None:
            self.config, self.reset, self.close = env.config, env.reset, env.close

    env = token_env(config_of(tmp_path), Elsewhere(AsyncTerminalGymEnv(config_of(tmp_path))))
    await env.reset()
    with pytest.raises(UsageError, match="Elsewhere can't copy a running episode"):
        await env.fork(1)
    await env.close()


def test_a_gymnasium_environment_is_copied(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    env: Any = gymnasium.make("HarborTerminal-v0", task_dir=config.task_dir, sandbox=config.sandbox)
    env.reset(seed=3)
    env.step("echo one > /srv/a\n")
    first, second = copies = env.unwrapped.fork(2)
    observation, info = first.reset()
    assert "echo one" in observation
    assert (info["turn"], info["fork_mode"]) == (1, "replay")
    first.step("echo two > /srv/a\n")
    assert "two" in first.step("cat /srv/a\n")[0]
    assert "one" in second.step("cat /srv/a\n")[0]
    for each in (env, *copies):
        each.close()
    assert not Counted.running


async def test_the_seed_of_a_reset_is_in_each_snapshot_and_copy(tmp_path: Path) -> None:
    parent = AsyncTerminalGymEnv(config_of(tmp_path))
    await parent.reset(seed=7)
    await parent.step(WRITE)
    (copy,) = await parent.fork(1)
    (await parent.snapshot()).write(tmp_path / "snapshot.json")
    begun = AsyncTerminalGymEnv(config_of(tmp_path, start_from=tmp_path / "snapshot.json"))
    async with closing(parent, copy, begun):
        await copy.reset()
        await begun.reset()
        assert [(await env.snapshot()).seed for env in (parent, copy, begun)] == [7, 7, 7]
        await begun.reset(seed=8)
        assert (await begun.snapshot()).seed == 8


async def test_the_state_of_a_copy_has_the_counts_of_tool_calls(tmp_path: Path) -> None:
    """No copy with processes has servers yet, but its state has what an episode with them counts."""
    parent = await started(config_of(tmp_path), WRITE)
    async with closing(parent):
        running = parent._episode_at_hand  # pyright: ignore[reportPrivateUsage]
        running.tool_metrics, running.confirmation_pending = {"mcp/calls": 2.0, "mcp/failed": 1.0}, True
        state = running.state(parent._budgets.spent)  # pyright: ignore[reportPrivateUsage]
    assert (state.tool_metrics, state.confirmation_pending) == ({"mcp/calls": 2.0, "mcp/failed": 1.0}, True)
