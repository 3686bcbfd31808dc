"""An interrupted evaluation goes on in its episodes: as exact copies where a dump could be kept, else by replay."""

import asyncio
import hashlib
import json
import re
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, Sample, Snapshot, TokenTerminalEnv, run_episode
from harbor_gym.evaluation import Player, evaluate
from harbor_gym.stragglers import EpisodeClock, Stragglers, play_rollouts
from harbor_gym.types import Rollout
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.copies import config_of
from tests.helpers.engine_double import EngineDouble, in_turn, serve
from tests.helpers.paths import ROOT
from tests.helpers.patience import eventually
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task

pytestmark = [
    pytest.mark.local,
    pytest.mark.criu,
    pytest.mark.usefixtures("nothing_left"),
]

ONCE = message("x=$RANDOM$RANDOM; echo $x | tee /srv/x\n")
"""No replay shows the same."""
SAME = message('[ "$x" = "$(cat /srv/x)" ] && echo done >/srv/answer\n')


@dataclass(frozen=True)
class Evaluation:
    """The command that evaluates one episode of a policy, as often as it is run."""

    arguments: Sequence[str]
    output: Path
    model: EngineDouble

    async def start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "harbor_gym", "eval", *self.arguments),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self) -> tuple[int, str]:
        """Run it to its end in this process, which is another one than those before."""
        done = await asyncio.to_thread(run_here, "eval", *self.arguments)
        return done.returncode, done.stdout + done.stderr

    async def reap(self) -> None:
        """Remove what killed processes left."""
        assert (await asyncio.to_thread(run_here, "reap")).returncode == 0

    async def end_at(self, answers: int, number: signal.Signals) -> str:
        """Run it, end it by a signal while the policy does not answer after some answers, and return its output."""
        self.model.released.clear()
        self.model.modes += [*[200] * answers, "hang"]
        asked = len(self.model.requests)
        process = await self.start()
        await eventually(lambda: len(self.model.requests) == asked + answers + 1)
        return await self.ended(process, number)

    async def ended(self, process: Process, number: signal.Signals) -> str:
        process.send_signal(number)
        shown, _ = await process.communicate()
        self.model.released.set()
        assert process.returncode != 0
        return shown.decode()

    @property
    def episode(self) -> Path:
        return self.output / "transcripts/test/batch_0000/task/episode_001"

    @property
    def kept(self) -> list[str]:
        """The files of the running episode's snapshot, without a digest."""
        found = self.episode.parent.glob("*episode_001.snapshot*")
        return sorted(re.sub(r"\.[0-9a-f]{16}\.", ".", path.name) for path in found)

    @property
    def row(self) -> dict[str, Any]:
        (row,) = [json.loads(line) for line in (self.output / "episodes.jsonl").read_text().splitlines()][1:]
        return row


OPTION = ("--sandbox-option", "forkable=true")


@asynccontextmanager
async def evaluation(folder: Path, *answers: str, forkable: bool = True) -> AsyncGenerator[Evaluation]:
    output = folder / "out"
    words = [str(write_task(folder / "task")), "--env", "local", "--episodes", "1", "--attempts", "1", "--model", "m"]
    words += [
        "--no-confirm-task-complete",
        "--copy-command=exit 3",  # an episode that goes on is no copy of another one
        "--output",
        str(output),
        *(["--sandbox-option", "forkable=true"] * forkable),
    ]
    async with serve(EngineDouble(write=in_turn(*answers))) as model:
        yield Evaluation([*words, "--base-url", model.url], output, model)


SNAPSHOT, DUMP = "episode_001.snapshot", "episode_001.snapshot.dump"

COMPILE_ONE = "python3 -c 'import py_compile, sys; py_compile.compile(sys.argv[1], sys.argv[2], doraise=True)'"
BUILD = (
    "mkdir /out; for f in $(ls /usr/lib/python3*/*.py | head -n 15); do sleep 0.2; "
    f"{COMPILE_ONE} $f /out/$(basename $f)c; done && touch /built &\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_editor_with_unsaved_text_and_a_build_go_on_in_another_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    answers = [
        *(ONCE, message(BUILD), message("vi /srv/answer\n"), message("idone")),
        *(message("\x1b:wq\n"), message("wait; clear; ls /built; ls /out | wc -l\n", duration=60), COMPLETE),
    ]
    async with evaluation(tmp_path, *answers) as run:
        shown = await run.end_at(4, number)
        assert f"interrupted; the same command with --output {run.output} goes on" in shown
        assert run.kept == [SNAPSHOT, DUMP]
        code, shown = await run.run()
        assert code == 0, shown
        assert re.search(r"episode 1 of task: completed, reward 1, 7 turns, [\d.]+ s, resumed \(exact\)", shown)
        assert run.model.requests[5]["messages"] == run.model.requests[4]["messages"], "it is asked the same again"
        assert "/built\n15\n" in run.model.requests[-1]["messages"][-1]["content"]
    assert run.kept == []
    assert run.row["resumed"] == "exact"
    document = json.loads(run.episode.with_suffix(".json").read_text())
    assert [turn["action"] for turn in document["turns"]] == answers
    assert document["start"]["fork_mode"] == "exact"
    events = [json.loads(line) for line in run.episode.with_suffix(".cast").read_text().splitlines()[1:]]
    assert [event[2].split(":")[0] for event in events if event[1] == "m"] == [str(turn) for turn in range(8)]
    assert [event[0] for event in events] == sorted(event[0] for event in events), "one recording, one clock"


async def test_what_cannot_be_restored_is_replayed_and_the_result_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with evaluation(
        tmp_path, message("cd /tmp; x=41\n"), message("echo $((x+1))\n"), message(DONE), COMPLETE
    ) as run:
        await run.end_at(2, signal.SIGTERM)
        suspended = shutil.copytree(run.output, tmp_path / "suspended")
        for why, words in (
            ("damaged", "is damaged or cut short"),
            ("lost", "it is not there"),
            ("of another start of the machine", "or was made before this one's last start"),
        ):
            shutil.rmtree(run.output)
            shutil.copytree(suspended, run.output)
            (dump,) = run.episode.parent.glob("*.dump")
            if why == "damaged":
                dump.write_bytes(dump.read_bytes()[:-1])
            elif why == "lost":
                dump.unlink()
            else:
                relabel(run.episode.with_suffix(".snapshot"), dump)
            caplog.clear()
            code, shown = await run.run()
            assert code == 0, (why, shown)
            (line,) = [line for line in caplog.messages if "the episode goes on by replay: " in line]
            assert words in line, why
            assert "4 turns" in shown, why
            assert run.row["resumed"] == "replay", why


def relabel(snapshot: Path, dump: Path) -> None:
    """Make a dump one of an earlier start of this machine."""
    line, _, rest = dump.read_bytes().partition(b"\n")
    header = json.loads(line)
    header["record"]["phase"]["dump"]["machine"]["boot"] = "earlier"
    dump.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    document = json.loads(snapshot.read_text(encoding="utf-8"))
    document["snapshot"]["dump"]["sha256"] = hashlib.sha256(dump.read_bytes()).hexdigest()
    snapshot.write_text(json.dumps(document), encoding="utf-8")


async def test_a_turn_that_is_interrupted_is_taken_again_after_a_replay(tmp_path: Path) -> None:
    seconds = "3217.5"
    async with evaluation(tmp_path, message("x=41\n"), message(f"sleep {seconds}\n", duration=60)) as run:
        process = await run.start()
        await eventually(lambda: is_running(f"sleep {seconds}"))
        await run.ended(process, signal.SIGTERM)
        assert run.kept == [SNAPSHOT]
        assert Snapshot.read(run.episode.with_suffix(".snapshot")).turn == 1
        run.model.modes += [said(message('[ "$x" = 41 ] && echo done >/srv/answer\n')), said(COMPLETE)]
        code, shown = await run.run()
        assert code == 0, shown
        assert run.model.requests[2]["messages"] == run.model.requests[1]["messages"]
    assert "completed, reward 1, 3 turns" in shown
    assert run.row["resumed"] == "replay"


def said(text: str) -> tuple[int, Any]:
    return 200, {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


def is_running(words: str) -> bool:
    return any(read(path) == words.replace(" ", "\0") + "\0" for path in Path("/proc").glob("[0-9]*/cmdline"))


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""


async def test_a_kill_leaves_the_dump_until_a_turn_was_taken(tmp_path: Path) -> None:
    async with evaluation(tmp_path, ONCE, SAME, COMPLETE) as run:
        await run.end_at(1, signal.SIGKILL)
        assert run.kept == [SNAPSHOT], "nothing is dumped by a process that was killed"
        run.episode.with_suffix(".snapshot").unlink()
        await run.end_at(1, signal.SIGTERM)
        await run.end_at(0, signal.SIGKILL)
        assert run.kept == [SNAPSHOT, DUMP], "the episode stands where it did"
        code, shown = await run.run()
        assert code == 0, shown
        await run.reap()
    assert "completed, reward 1, 3 turns" in shown
    assert run.row["resumed"] == "exact"


async def test_a_killed_episode_that_no_replay_repeats_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with evaluation(tmp_path, ONCE, SAME, COMPLETE) as run:
        await run.end_at(1, signal.SIGTERM)
        await run.end_at(1, signal.SIGKILL)
        assert run.kept == [SNAPSHOT], "the dump was of an earlier turn"
        code, shown = await run.run()
        assert code == 0, shown
        await run.reap()
    assert "episode_001 begins anew: turn 1 of the replay differs" in caplog.text
    assert "completed, reward 1, 3 turns" in shown
    assert run.row["resumed"] is None


async def test_an_evaluation_under_way_is_not_resumed_by_another_process(tmp_path: Path) -> None:
    async with evaluation(tmp_path, message(DONE), COMPLETE, forkable=False) as run:
        run.model.modes += [200, "hang"]
        first = await run.start()
        await eventually(lambda: len(run.model.requests) == 2)
        code, shown = await run.run()
        assert (code, shown.count("\n")) == (2, 1), shown
        assert f"a run is under way in {run.output}: wait for its end, or name another folder (--output)" in shown
        assert len(run.model.requests) == 2
        run.model.released.set()
        shown = (await first.communicate())[0].decode()
    assert first.returncode == 0, shown
    assert "completed, reward 1, 2 turns" in shown


# --- a policy in tokens -----------------------------------------------------------------------------------------------

TOKEN_WORK = [ONCE, message("echo two\n"), SAME, COMPLETE]


class Thinking:
    """A policy in tokens that thinks until it is cancelled, once, before an answer."""

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self.prompts: list[list[int]] = []
        self.is_thinking = asyncio.Event()

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        turn = list(prompt).count(ASK) - 1
        self.prompts.append(list(prompt))
        if turn == self._turn and not self.is_thinking.is_set():
            self.is_thinking.set()
            await asyncio.Event().wait()
        tokens = [*map(ord, TOKEN_WORK[turn]), END]
        return Sample(tokens, [-0.25 - turn] * len(tokens), version=7)


async def test_an_episode_of_a_token_policy_goes_on_with_its_tokens_and_their_logprobs(
    task_dir: Path, tmp_path: Path
) -> None:
    policy = Thinking(2)
    player = Player(codec=CharacterCodec(), sample=policy, max_tokens=1000, transcripts_dir=tmp_path)
    playing = asyncio.ensure_future(evaluate([config_of(task_dir)], player, episodes=1))
    await policy.is_thinking.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    (result,) = await evaluate([config_of(task_dir)], player, episodes=1)
    assert (result.reward, result.turns, result.resumed) == (1.0, 4, "exact")
    assert policy.prompts[3] == policy.prompts[2]
    (written,) = tmp_path.rglob("episode_001.json")  # noqa: ASYNC240
    turns = json.loads(written.read_text())["turns"]
    assert [set(turn["logprobs"]) for turn in turns] == [{-0.25 - turn} for turn in range(4)]
    assert [turn["version"] for turn in turns] == [7] * 4


async def test_a_straggler_is_put_aside_with_its_processes_and_trained_whole_later(
    task_dir: Path, tmp_path: Path
) -> None:
    policies = [Thinking(2), Thinking(99)]

    async def play(place: int, clock: EpisodeClock) -> Rollout:
        async def answer(prompt: Sequence[int]) -> Sample:
            return await clock.answer(lambda: policies[place](prompt))

        async def keep(snapshot: Snapshot) -> None:
            snapshot.write(tmp_path / f"{place}.snapshot")

        env = TokenTerminalEnv(AsyncTerminalGymEnv(config_of(task_dir)), CharacterCodec(), max_tokens=1000)
        if place == 1:
            await policies[0].is_thinking.wait()
        return await run_episode(env, answer, keep=keep)

    (ended,), closed = await play_rollouts(1, Stragglers(over_sample=2), play)
    assert (ended.reward, ended.end_reason) == (1.0, EndReason.COMPLETED)
    assert list(closed.dropped) == [0]
    start = tmp_path / "0.snapshot"
    later = TokenTerminalEnv(
        AsyncTerminalGymEnv(config_of(task_dir, start_from=start)), CharacterCodec(), max_tokens=1000
    )
    rollout = await run_episode(later, policies[0])
    assert (rollout.reward, (rollout.transcript.start_info or {}).get("fork_mode")) == (1.0, "exact")
    earlier = Snapshot.read(start).transitions
    whole = [*earlier, *rollout.transitions]
    assert [list(step.prompt) for step in whole] == [policies[0].prompts[turn] for turn in (0, 1, 3, 4)]
    assert [step.sample for step in whole] == [await Thinking(99)(step.prompt) for step in whole]
