"""A prompt that becomes too long is made shorter of whole messages, and each sampled token is trained once."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harbor_gym import AsyncTerminalGymEnv, EndReason, Rollout, Sample, flatten, merge
from harbor_gym.compaction import Prompt
from harbor_gym.config import Snapshot
from harbor_gym.config.snapshot import SnapshotFile
from harbor_gym.errors import ContextOverflowError, UsageError
from harbor_gym.formats import prompts
from harbor_gym.report import export
from harbor_gym.rollout import run_episode
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.transcripts import read_transcript, write_transcript
from harbor_gym.types import Exchange
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

MAX_TOKENS, CONTEXT = 200, 4000


def token_env(task_dir: Path, *, context: int | None = CONTEXT, **settings: Any) -> TokenTerminalEnv:
    known: dict[str, Any] = {"compaction": "window", **settings}
    env = AsyncTerminalGymEnv(fake_config(task_dir, **known))
    return TokenTerminalEnv(env, CharacterCodec(), max_tokens=MAX_TOKENS, max_context_tokens=context)


class Typist:
    """Types a numbered command in each turn, then declares the task complete."""

    def __init__(self, turns: int, *, window: int | None = None, shown: int = 40) -> None:
        self.turns, self.window, self.shown = turns, window, shown
        self.prompts: list[list[int]] = []
        self.answers: list[list[int]] = []
        self.refused = 0

    def answer(self, number: int) -> list[int]:
        return [*map(ord, message(f"echo {number:04d}{'x' * self.shown}\n")), END]

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        if self.window is not None and len(prompt) > self.window:
            self.refused += 1
            raise ContextOverflowError("too long")
        number = len(self.answers)
        sampled = [*map(ord, COMPLETE), END] if number == self.turns else self.answer(number)
        self.prompts.append(list(prompt))
        self.answers.append(sampled)
        return Sample(sampled, [-(number + place / 1000) for place in range(len(sampled))])


def said(prompt: Sequence[int]) -> list[str]:
    """Return a prompt's messages."""
    return "".join(map(chr, prompt)).replace(chr(ASK), "").split(chr(END))[:-1]


def trained(rollout: Rollout) -> list[tuple[int, list[int]]]:
    """Return what is trained: each call's number and tokens."""
    sequences = merge(rollout.transitions)
    return [(span.call, item.completion[span.start : span.end]) for item in sequences for span in item.spans]


@st.composite
def prompts_of_turns(draw: st.DrawFn) -> Prompt:
    prompt, token = Prompt(list(range(draw(st.integers(1, 30))))), 1000
    for turn in range(1, draw(st.integers(1, 12)) + 1):
        sampled, shown = draw(st.integers(0, 20)), draw(st.integers(1, 40))
        prompt = prompt.extended(turn, range(token, token + sampled), range(token + sampled, token + sampled + shown))
        token += sampled + shown
    return prompt


def messages(prompt: Prompt) -> list[tuple[int, list[int], list[int]]]:
    """Return the turn, the answer and what was shown after it, for each exchange."""
    place, found = len(prompt.tokens) - sum(item.size for item in prompt.exchanges), []
    for item in prompt.exchanges:
        end = place + item.sampled
        found.append((item.turn, prompt.tokens[place:end], prompt.tokens[end : place + item.size]))
        place += item.size
    return found


@given(prompts_of_turns(), st.integers(0, 400), st.sets(st.integers(1, 12)), st.integers(1, 2))
def test_a_window_has_whole_messages_alone(prompt: Prompt, room: int, kept: set[int], times: int) -> None:
    known, counted, whole = {turn: (answer, shown) for turn, answer, shown in messages(prompt)}, Counter[int](), prompt
    shorter: Prompt | None = prompt
    for _ in range(times):
        counted.clear()

        def replaced(answer: Sequence[int], turns: int) -> list[int]:
            (turn,) = (turn for turn, (mine, _) in known.items() if mine == list(answer) and mine) if answer else (0,)
            counted[turn] = turns
            return [-turns, -turns]

        shorter = prompt.window(room, replaced, kept=kept)
        if shorter is None:
            return
        assert len(shorter.tokens) < len(prompt.tokens)
        prompt, room = shorter, room // 2
    assert shorter is not None
    found = messages(shorter)
    head = len(whole.tokens) - sum(item.size for item in whole.exchanges)
    assert shorter.tokens[:head] == whole.tokens[:head], "the first message stays"
    assert found[-1] == messages(whole)[-1], "and so does the last exchange"
    turns, stands_for = [turn for turn, *_ in found], 0
    assert turns == sorted(set(turns))
    for turn, answer, shown in found:
        assert answer == known[turn][0]
        assert shown == known[turn][1] or (shown[0] < 0 and turn not in kept)
        stands_for += -shown[0] if shown[0] < 0 else 1
    assert stands_for == len(known), "each turn is there, or is counted where it was left out"
    assert {turn for turn in kept if turn in known} <= set(turns)


async def test_each_sampled_token_is_trained_once_and_the_episode_is_the_same(tmp_path: Path) -> None:
    with_none, policy = Typist(40), Typist(40)
    whole = await run_episode(token_env(tmp_path / "task", compaction="none", context=None), with_none)
    rollout = await run_episode(token_env(tmp_path / "task"), policy)
    assert (rollout.reward, rollout.end_reason) == (whole.reward, whole.end_reason) == (1.0, EndReason.COMPLETED)
    assert policy.answers == with_none.answers
    assert sorted(trained(rollout)) == list(enumerate(policy.answers))
    sequences = merge(rollout.transitions)
    last = rollout.transitions[-1].info
    assert last["metrics"]["compactions"] == len(sequences) - 1 >= 2
    assert "compactions" not in whole.transitions[-1].info["metrics"]
    assert [*merge(whole.transitions)] == [flatten(whole)]
    known = set(said([*whole.transitions[-1].prompt]))
    for prompt in policy.prompts:
        assert len(prompt) + MAX_TOKENS <= CONTEXT
        new = [text for text in said(prompt) if text not in known]
        assert all(text.startswith("[left out to save room: this output") for text in new), "nothing is cut"
        assert len(new) <= 1
        assert said(prompt)[:2] == said(policy.prompts[0]), "system and instruction"
        assert said(prompt)[-1] == said(with_none.prompts[policy.prompts.index(prompt)])[-1]
    compacted = [turn for turn in rollout.turns if turn.compaction is not None]
    assert all(turn.info.get("compacted", "").startswith("window: from ") for turn in compacted)
    assert [turn.compaction is not None for turn in rollout.turns] == ["compacted" in t.info for t in rollout.turns]
    with pytest.raises(UsageError, match="use merge for such turns"):
        flatten(rollout)


async def test_a_long_horizon_is_played_in_a_small_context(tmp_path: Path) -> None:
    policy, budgets = Typist(300), {"max_turns": 320, "time_limit_sec": 10_000.0}
    rollout = await run_episode(token_env(tmp_path / "task", context=8000, **budgets), policy)
    whole = await run_episode(token_env(tmp_path / "task", context=None, compaction="none", **budgets), Typist(300))
    assert (rollout.reward, rollout.end_reason) == (whole.reward, whole.end_reason) == (1.0, EndReason.COMPLETED)
    assert len(rollout.turns) == len(whole.turns) == 301
    assert [turn.observation for turn in rollout.turns] == [turn.observation for turn in whole.turns]
    assert sorted(trained(rollout)) == list(enumerate(policy.answers))
    assert max(map(len, policy.prompts)) + MAX_TOKENS <= 8000
    ends = [*(item.transitions[-1].info for item in (rollout, whole))]
    assert [info["turn"] for info in ends] == [301, 301]


@pytest.mark.parametrize(("at", "longest"), [(2500, 2500), (0.5, CONTEXT // 2)])
async def test_the_threshold_is_in_tokens_or_a_share(tmp_path: Path, at: float, longest: int) -> None:
    policy = Typist(30)
    rollout = await run_episode(token_env(tmp_path / "task", compact_at=at), policy)
    assert rollout.end_reason is EndReason.COMPLETED
    assert longest - 300 < max(map(len, policy.prompts)) <= longest


async def test_a_prompt_that_the_engine_refuses_is_made_shorter(tmp_path: Path) -> None:
    policy = Typist(40, window=3000)
    rollout = await run_episode(token_env(tmp_path / "task", context=None), policy)
    assert (rollout.reward, rollout.end_reason) == (1.0, EndReason.COMPLETED)
    assert policy.refused == rollout.transitions[-1].info["metrics"]["compactions"] >= 2
    assert sorted(trained(rollout)) == list(enumerate(policy.answers))
    assert sum("compacted" in transition.info for transition in rollout.transitions) == policy.refused
    off = await run_episode(token_env(tmp_path / "task", context=None, compaction="none"), Typist(40, window=3000))
    assert off.end_reason is EndReason.CONTEXT_OVERFLOW


async def test_an_engine_that_refuses_every_prompt_ends_the_episode(tmp_path: Path) -> None:
    policy = Typist(3)
    env = token_env(tmp_path / "task", context=None, rewards=0.5)

    async def refuse(prompt: Sequence[int]) -> Sample:
        if len(policy.answers) == 3:
            raise ContextOverflowError("too long")
        return await policy(prompt)

    rollout = await run_episode(env, refuse)
    assert (rollout.reward, rollout.end_reason) == (0.5, EndReason.CONTEXT_OVERFLOW)
    assert sorted(trained(rollout)) == list(enumerate(policy.answers))


@pytest.mark.parametrize("before", [0, 5])
async def test_output_that_can_not_fit_is_cut_first(tmp_path: Path, before: int) -> None:
    class Long(Typist):
        def answer(self, number: int) -> list[int]:
            return [*map(ord, message("long\n")), END] if number == before else super().answer(number)

    policy, lines = Long(before + 2), "\n".join(f"line {number}" for number in range(800))
    env = token_env(tmp_path / "task", answers={"long": f"{lines}\n"})
    rollout = await run_episode(env, policy)
    assert (rollout.reward, rollout.end_reason) == (1.0, EndReason.COMPLETED)
    shown = said(policy.prompts[before + 1])[-1]
    assert "line 1\n" in shown
    assert "line 799" in shown
    assert " omitted ...]" in shown
    assert rollout.transitions[before].info.get("omitted_bytes", 0) > 0
    assert len(policy.prompts[before + 1]) + MAX_TOKENS <= CONTEXT
    assert sorted(trained(rollout)) == list(enumerate(policy.answers))


async def test_after_the_most_compactions_the_context_ends_the_episode(tmp_path: Path) -> None:
    rollout = await run_episode(token_env(tmp_path / "task", max_compactions=2, rewards=0.5), Typist(60))
    assert (rollout.reward, rollout.end_reason) == (0.5, EndReason.CONTEXT_OVERFLOW)
    assert rollout.transitions[-1].info["metrics"]["compactions"] == 2


async def test_the_instruction_of_each_step_stays(tmp_path: Path) -> None:
    class OfSteps(Typist):
        def answer(self, number: int) -> list[int]:
            return [*map(ord, COMPLETE), END] if number == 20 else super().answer(number)

    policy = OfSteps(40)
    rollout = await run_episode(token_env(tmp_path / "task", steps=2), policy)
    assert rollout.end_reason is EndReason.COMPLETED
    assert rollout.transitions[-1].info["metrics"]["compactions"] >= 2
    for prompt in policy.prompts[21:]:
        opening = [text for text in said(prompt) if "Do step-2." in text]
        assert len(opening) == 1
        assert opening[0].startswith("[that step was graded; here is the next]")
    assert sorted(trained(rollout)) == list(enumerate(policy.answers))


async def test_an_episode_goes_on_from_any_turn_with_the_same_tokens(tmp_path: Path) -> None:
    policy, kept = Typist(24), list[Snapshot]()
    on_disk = tmp_path / "episode.snapshot"
    file = SnapshotFile(on_disk)

    async def keep(snapshot: Snapshot) -> None:
        file.keep(snapshot)
        read = Snapshot.read(on_disk)
        assert (read.tokens, read.turn) == (snapshot.tokens, snapshot.turn)
        assert [turn.compaction for turn in read.turns] == [turn.compaction for turn in snapshot.turns]
        assert ["compacted" in turn.info for turn in read.turns] == [bool(turn.compaction) for turn in read.turns]
        kept.append(read)

    rollout = await run_episode(token_env(tmp_path / "task"), policy, keep=keep)
    compactions = rollout.transitions[-1].info["metrics"]["compactions"]
    assert compactions >= 2
    path = tmp_path / "episode.json"
    write_transcript(path, rollout.transcript, labels={})
    last = Snapshot.read(path)
    assert [item.sample.tokens for item in last.transitions] == policy.answers[:24]
    assert [item.prompt for item in last.transitions] == policy.prompts[:24]
    for turn in (1, 12, 24):
        at = last.at(turn)
        assert list(at.tokens or ()) == policy.prompts[turn]
        assert at.tokens == kept[turn - 1].tokens
        going_on = Typist(24)
        going_on.answers, going_on.prompts = policy.answers[:turn], policy.prompts[:turn]
        again = await run_episode(token_env(tmp_path / "task", start_from=at), going_on)
        assert going_on.prompts == policy.prompts
        assert again.transcript.infos[-1]["metrics"]["compactions"] == compactions
    read, _ = read_transcript(path)
    assert [turn.compaction for turn in read.turns] == [turn.compaction for turn in rollout.turns]


async def test_copies_have_the_tokens_of_a_compacted_episode(tmp_path: Path) -> None:
    policy = Typist(24)
    env = token_env(tmp_path / "task")
    step = await env.reset()
    for _ in range(16):
        sample = await policy(step.observation)
        step = await env.step(sample.tokens)
    assert any(turn.compaction is not None for turn in env.transcript.turns)
    (copied,) = await env.fork(1, mode="replay")
    rollouts: list[list[list[int]]] = []
    for each in (env, copied):
        going_on = Typist(24)
        going_on.answers = policy.answers[:]
        prompt, done = step.observation, False
        if each is copied:
            prompt = (await each.reset()).observation
        while not done:
            sample = await going_on(prompt)
            following = await each.step(sample.tokens)
            prompt, done = following.observation, following.done
        rollouts.append(going_on.prompts)
        await each.close()
    assert rollouts[0] == rollouts[1]


@pytest.mark.parametrize(
    ("settings", "context", "words"),
    [
        ({"compact_at": 0.5}, None, "compact_at=0.5 is a share of an unknown context: give max_context_tokens"),
        ({"compact_at": 5000}, CONTEXT, "compact_at=5000 is more than the context of 4000 tokens: give a smaller"),
    ],
)
async def test_a_threshold_that_does_not_fit_is_refused_before_a_sandbox_starts(
    tmp_path: Path, settings: dict[str, Any], context: int | None, words: str
) -> None:
    env = token_env(tmp_path / "task", context=context, **settings)
    with pytest.raises(UsageError, match=words):
        await env.reset()
    await env.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"compaction": "squeeze"}, "compaction\n  Input should be 'none', 'window' or 'summary'"),
        (
            {"compaction": "none", "compact_at": 0.5},
            "compact_at and max_compactions need a compaction: window or summary",
        ),
        ({"compaction": "window", "train_summaries": False}, "train_summaries=False needs compaction=summary"),
        ({"compact_at": 0}, "compact_at\n  Input should be greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        token_env(tmp_path / "task", **settings)


def test_the_line_says_what_is_left_out() -> None:
    lines = [prompts.left_out(turns) for turns in (1, 2, 9)]
    earlier = ("", " and the turn before it", " and the 8 turns before it")
    assert lines == [f"[left out to save room: this output{text}]" for text in earlier]
    assert Exchange(1, 2, 3).size == 5


class Summarist(Typist):
    """A typist that answers each request for a summary with the next of some texts, and then with numbered ones."""

    def __init__(self, turns: int, *, first: Sequence[str] = (), window: int | None = None) -> None:
        super().__init__(turns, window=window)
        self.first, self.summaries = first, list[tuple[list[int], list[int]]]()

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        if said(prompt)[-1] != prompts.SUMMARY_REQUEST or (self.window is not None and len(prompt) > self.window):
            return await super().__call__(prompt)
        number = len(self.summaries)
        text = self.first[number] if number < len(self.first) else f"summary {number}: {len(self.answers)} commands"
        is_cut = text.endswith("...")
        tokens = [*map(ord, text)] if is_cut else [*map(ord, text), END]
        self.summaries.append((list(prompt), tokens))
        return Sample(tokens, [-0.5] * len(tokens), stop_reason="length" if is_cut else "stop")


def summaries_trained(rollout: Rollout) -> list[list[int]]:
    """Return the tokens that are trained as summaries."""
    sequences = merge(rollout.transitions)
    spans = [(item, span) for item in sequences for span in item.spans if span.is_summary]
    return [item.completion[span.start : span.end] for item, span in sorted(spans, key=lambda found: found[1].call)]


async def test_a_summary_is_asked_for_trained_and_begins_a_conversation(tmp_path: Path) -> None:
    with_none, policy = Typist(40), Summarist(40)
    whole = await run_episode(token_env(tmp_path / "task", compaction="none", context=None), with_none)
    rollout = await run_episode(token_env(tmp_path / "task", compaction="summary"), policy)
    assert (rollout.reward, rollout.end_reason) == (whole.reward, whole.end_reason) == (1.0, EndReason.COMPLETED)
    assert policy.answers == with_none.answers, "the terminal's episode is the same"
    assert [turn.observation for turn in rollout.turns] == [turn.observation for turn in whole.turns]
    metrics = rollout.transitions[-1].info["metrics"]
    made = [tokens for _, tokens in policy.summaries]
    assert metrics["compactions"] == len(made) >= 2
    assert metrics["summary_tokens"] == sum(map(len, made))
    assert summaries_trained(rollout) == made
    tokens = [tokens for _, tokens in sorted(trained(rollout))]
    assert sorted(tokens) == sorted([*policy.answers, *made]), "each once"
    assert len(merge(rollout.transitions)) == len(made) + 1, "a summary extends the conversation that it ends"
    texts = ["".join(map(chr, tokens[:-1])) for tokens in made]
    for prompt in policy.prompts:
        assert len(prompt) + MAX_TOKENS <= CONTEXT
        system, first, *_ = said(prompt)
        assert system == said(policy.prompts[0])[0]
        if first != said(policy.prompts[0])[1]:
            used = [text for text in texts if text in first]
            assert len(used) == 1
            assert first.startswith("Task:\n")
            assert f"\n\nYour summary of the work so far:\n{used[0]}\n\nTerminal:\n" in first
            shown = said(with_none.prompts[policy.prompts.index(prompt)])[-1]
            assert said(prompt)[-1] in (shown, first)
            assert said(prompt)[-1] != first or first.endswith(f"Terminal:\n{shown}")
    for prompt, summary in policy.summaries:
        assert len(prompt) + len(summary) <= CONTEXT
        assert len(prompt) + MAX_TOKENS <= CONTEXT
    compacted = [turn for turn in rollout.turns if turn.compaction is not None]
    assert all(turn.info.get("compacted", "").startswith("summary: from ") for turn in compacted)
    assert [summary.state for turn in compacted for summary in turn.summaries] == ["used"] * len(made)
    assert sum(item.reward for item in rollout.transitions) == rollout.reward


@pytest.mark.parametrize("first", [("",), ("  ",), ("much too long...",)])
async def test_a_summary_that_is_no_use_is_asked_for_once_more(tmp_path: Path, first: tuple[str]) -> None:
    policy = Summarist(20, first=first)
    rollout = await run_episode(token_env(tmp_path / "task", compaction="summary"), policy)
    assert (rollout.reward, rollout.end_reason) == (1.0, EndReason.COMPLETED)
    asked = [prompt for prompt, _ in policy.summaries]
    assert asked[0] == asked[1], "by the same prompt"
    assert sorted(summaries_trained(rollout)) == sorted(tokens for _, tokens in policy.summaries)
    (turn,) = [turn for turn in rollout.turns if len(turn.summaries) == 2]
    assert [summary.state for summary in turn.summaries] == ["cut" if first[0].endswith("...") else "empty", "used"]
    assert turn.compaction is not None
    assert turn.compaction.kind == "summary"


async def test_after_two_useless_summaries_older_turns_are_left_out(tmp_path: Path) -> None:
    policy = Summarist(20, first=("", "cut..."))
    rollout = await run_episode(token_env(tmp_path / "task", compaction="summary"), policy)
    assert (rollout.reward, rollout.end_reason) == (1.0, EndReason.COMPLETED)
    kinds = [turn.compaction.kind for turn in rollout.turns if turn.compaction is not None]
    assert kinds[0] == "window"
    assert set(kinds[1:]) == {"summary"}
    assert any("[left out to save room: this output" in text for prompt in policy.prompts for text in said(prompt))
    assert sorted(summaries_trained(rollout)) == sorted(tokens for _, tokens in policy.summaries)


@pytest.mark.parametrize("is_trained", [True, False])
async def test_an_engine_that_refuses_whatever_is_left_ends_the_episode(tmp_path: Path, is_trained: bool) -> None:
    policy, options = Summarist(20, first=["", ""]), {"train_summaries": is_trained}
    env = token_env(tmp_path / "task", compaction="summary", context=None, rewards=0.5, **options)

    async def refuse(prompt: Sequence[int]) -> Sample:
        if len(policy.answers) == 3 and said(prompt)[-1] != prompts.SUMMARY_REQUEST:
            raise ContextOverflowError("too long")
        return await policy(prompt)

    rollout = await run_episode(env, refuse)
    assert (rollout.reward, rollout.end_reason) == (0.5, EndReason.CONTEXT_OVERFLOW)
    assert sum(item.reward for item in rollout.transitions) == rollout.transcript.reward == 0.5
    asked = sorted(tokens for _, tokens in policy.summaries)
    assert sorted(summaries_trained(rollout)) == (asked if is_trained else [])
    assert len(asked) == 2, "the transcript has them"
    assert rollout.transitions[-1].info.get("summary") == ("empty" if is_trained else None)
    assert rollout.transitions[-1].info.get("end_reason") is EndReason.CONTEXT_OVERFLOW


async def test_an_engine_that_refuses_a_prompt_is_asked_for_a_summary(tmp_path: Path) -> None:
    policy = Summarist(40, window=3000)
    rollout = await run_episode(token_env(tmp_path / "task", compaction="summary", context=None), policy)
    assert (rollout.reward, rollout.end_reason) == (1.0, EndReason.COMPLETED)
    assert policy.refused >= rollout.transitions[-1].info["metrics"]["compactions"] >= 2
    everything = [*policy.answers, *(tokens for _, tokens in policy.summaries)]
    assert sorted(tokens for _, tokens in trained(rollout)) == sorted(everything)
    assert sum(item.reward for item in rollout.transitions) == 1.0


async def test_an_episode_with_summaries_goes_on_from_any_turn_with_the_same_tokens(tmp_path: Path) -> None:
    policy, kept = Summarist(24), list[tuple[int, int, Snapshot]]()
    on_disk = tmp_path / "episode.snapshot"
    file = SnapshotFile(on_disk)

    async def keep(snapshot: Snapshot) -> None:
        file.keep(snapshot)
        read = Snapshot.read(on_disk)
        assert (read.tokens, read.turn) == (snapshot.tokens, snapshot.turn)
        assert [turn.compaction for turn in read.turns] == [turn.compaction for turn in snapshot.turns]
        found, written = [[item for turn in each.turns for item in turn.summaries] for each in (read, snapshot)]
        assert [replace(item, thinking_sec=None) for item in found] == [
            replace(item, thinking_sec=None) for item in written
        ]
        kept.append((len(policy.answers), len(policy.summaries), read))

    rollout = await run_episode(token_env(tmp_path / "task", compaction="summary"), policy, keep=keep)
    assert len(policy.summaries) >= 2
    everything = [(item.prompt, item.sample.tokens) for item in rollout.transitions]
    path = tmp_path / "episode.json"
    write_transcript(path, rollout.transcript, labels={})
    last = Snapshot.read(path)
    assert [(item.prompt, item.sample.tokens) for item in last.transitions] == everything[: len(last.transitions)]
    assert len(everything) - len(last.transitions) in (0, 1)
    assert len(kept) == len(everything) - 1
    for answers, summaries, at in kept:
        going_on = Summarist(24)
        going_on.answers, going_on.prompts = policy.answers[:answers], policy.prompts[:answers]
        going_on.summaries = policy.summaries[:summaries]
        again = await run_episode(token_env(tmp_path / "task", compaction="summary", start_from=at), going_on)
        assert going_on.prompts == policy.prompts
        assert going_on.summaries == policy.summaries
        before = [(item.prompt, item.sample.tokens) for item in at.transitions]
        assert [*before, *((item.prompt, item.sample.tokens) for item in again.transitions)] == everything


@pytest.mark.parametrize("kind", ["window", "summary"])
async def test_an_export_has_each_conversation_as_it_is_trained(tmp_path: Path, kind: str) -> None:
    rollout = await run_episode(token_env(tmp_path / "task", compaction=kind), Summarist(24))
    run = tmp_path / "run"
    write_transcript(run / "transcripts" / "episode.json", rollout.transcript, labels={"task": "task"})
    written = export([run], tmp_path / "rows.jsonl", form="tokens")
    assert written.episodes == 1
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    sequences = merge(rollout.transitions)
    assert len(sequences) >= 3
    assert [row["sequence"] for row in rows] == [*range(len(sequences))]
    assert [(row["input_ids"], row["assistant_masks"]) for row in rows] == [
        (sequence.token_ids, sequence.token_mask) for sequence in sequences
    ]


async def test_a_copy_is_asked_for_the_same_summary(tmp_path: Path) -> None:
    policy = Summarist(24)
    env = token_env(tmp_path / "task", compaction="summary")
    step = await env.reset()
    while said(step.observation)[-1] != prompts.SUMMARY_REQUEST:
        step = await env.step((await policy(step.observation)).tokens)
    (copied,) = await env.fork(1, mode="replay")
    assert (await copied.reset()).observation == step.observation
    for each in (env, copied):
        await each.close()


async def test_a_context_without_room_for_a_summary_is_refused_before_a_sandbox_starts(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task", compaction="summary", context=2 * MAX_TOKENS + 100)
    with pytest.raises(UsageError, match="has no room for an answer and a summary of 200 tokens each"):
        await env.reset()
    await env.close()


async def test_a_first_prompt_beside_which_no_summary_fits_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with token_env(tmp_path / "measured") as env:
        first = len((await env.reset()).observation)
    request = len(CharacterCodec().next_turn([], prompts.SUMMARY_REQUEST))
    room = first + request + 2 * MAX_TOKENS
    for name, context in (("fits", room), ("small", room - 1)):
        caplog.clear()
        rollout = await run_episode(token_env(tmp_path / name, compaction="summary", context=context), Summarist(8))
        told = [text for text in caplog.messages if "no summary fits" in text]
        assert bool(told) == (name == "small"), rollout
    assert told == [
        f"compaction=summary: the first prompt has {first} tokens, and beside more than {first - 1} no summary fits: "
        "older turns are left out instead; make the context larger, or max_tokens smaller"
    ]


async def test_a_summary_of_a_step_has_its_instruction(tmp_path: Path) -> None:
    class OfSteps(Summarist):
        def answer(self, number: int) -> list[int]:
            return [*map(ord, COMPLETE), END] if number == 20 else super().answer(number)

    policy = OfSteps(40)
    rollout = await run_episode(token_env(tmp_path / "task", compaction="summary", steps=2), policy)
    assert rollout.end_reason is EndReason.COMPLETED
    assert sum(item.reward for item in rollout.transitions) == rollout.transcript.reward
    for prompt in policy.prompts[21:]:
        assert sum("Do step-2." in text for text in said(prompt)) == 1
