"""Every sampled token is trained once: a count by door, over the contract's episodes and over generated ones."""

import dataclasses
import importlib.util
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from harbor_gym import Sample, Sampler
from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.errors import HarborGymError
from harbor_gym.formats.prompts import SUMMARY_REQUEST
from harbor_gym.types import TokenSequence
from tests.benchmarks.report import BenchReport
from tests.contract.differences import DIFFERENCES
from tests.contract.players.episode import Episode, Played
from tests.contract.test_same_episode import ADAPTERS, ENGINES, EPISODES, STEPS
from tests.helpers.chats.tokenizers import byte_level_tokenizer, spelt
from tests.helpers.engines import has_engine
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_steps, write_task

_SANDBOX = "tests.contract.players.episode:Vanishing"
_SOLVED_WHEN = {"solved_when": {"/srv/answer": "done"}}
_TWINS = ("trl", "trl-async", "trl-async-agent")
"""Doors that play an episode twice, since a group has two at least, compare both and return one."""


@dataclass(frozen=True)
class Counts:
    """Tokens of a door's episodes."""

    episodes: int = 0
    sampled: int = 0
    trained: int = 0
    lost: int = 0
    """Sampled, and not trained."""

    doubled: int = 0
    """Trained more often than sampled."""

    foreign: int = 0
    """Trained and never sampled, or sampled after other tokens."""

    refused: int = 0
    """Episodes that the door refuses before they start, or returns without a sequence, as the documentation says."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    @property
    def is_right(self) -> bool:
        """Whether each token is trained as often as it was sampled."""
        return self.lost == self.doubled == self.foreign == 0


@dataclass(frozen=True)
class TokenReport(BenchReport):
    """The counts of each door; None for one whose engine is not here."""

    doors: Mapping[str, Counts | None]

    @property
    @override
    def is_right(self) -> bool:
        return all(counts is None or counts.is_right for counts in self.doors.values())


class Recorded:
    """A sampler that keeps what it sampled."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.sampled = Counter[int]()
        """Places of tokens, see :func:`places`."""

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        sample = await self._sampler(prompt)
        self.sampled.update(places(prompt, sample.tokens))
        return sample


class Wandering:
    """A policy that draws its answers: of many forms, with or without thinking, in tokens that no tokenizer writes."""

    def __init__(self, seed: int, turns: int) -> None:
        self.seed, self.turns = seed, turns

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        tokenizer, draw = byte_level_tokenizer(), random.Random(f"{self.seed} {len(prompt)}")
        shown = tokenizer.decode(list(prompt))
        turn = shown.count("<|im_start|>assistant") - 1
        text = message(f"echo {'x' * draw.randrange(200)}\n")
        if draw.random() < 0.1:
            text = "unreadable äöü \U0001f600"
        elif SUMMARY_REQUEST in shown.rpartition("<|im_start|>user")[2]:
            text = draw.choice(("", "I did this and that."))
        elif f'"{DONE[:6]}' in shown or turn >= self.turns:
            text = COMPLETE
        elif draw.random() < 0.05:
            text = message(DONE)
        if draw.random() < 0.3:
            text = f"<think>\nI plan.\n</think>\n\n{text}"
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if draw.random() < 0.5:
            tokens = spelt(text, keep_marks=True)
        tokens = [*tokens, tokenizer.convert_tokens_to_ids("<|im_end|>")]
        return Sample(tokens, [-draw.random() for _ in tokens])


def places(before: Sequence[int], tokens: Sequence[int]) -> Iterator[int]:
    """Yield for each token a number for it and all tokens before it."""
    so_far = 0
    for token in before:
        so_far = hash((so_far, token))
    for token in tokens:
        so_far = hash((so_far, token))
        yield so_far


def count(sampled: Counter[int], sequences: Sequence[TokenSequence]) -> Counts:
    """Compare what was sampled with what is trained."""
    trained = Counter[int]()
    for sequence in sequences:
        every = [*places((), sequence.token_ids)]
        trained.update(place for place, mask in zip(every, sequence.token_mask, strict=True) if mask)
    return Counts(
        1,
        sampled.total(),
        trained.total(),
        lost=(sampled - trained).total(),
        doubled=sum(number - sampled[place] for place, number in trained.items() if 0 < sampled[place] < number),
        foreign=sum(number for place, number in trained.items() if place not in sampled),
    )


async def play(door: str, episode: Episode) -> Counts:
    """Play an episode through a door, and count its tokens."""
    recorded = Recorded(episode.sampler)
    try:
        played: Played = await ADAPTERS[door](dataclasses.replace(episode, sampler=recorded))
    except (HarborGymError, ValueError) as exc:
        if recorded.sampled or not re.search("one conversation an episode|compaction: for our own loop", str(exc)):
            raise
        return Counts(1, refused=1)
    sequences = played.sequences or ([] if played.sequence is None else [played.sequence])
    times = 2 if door in _TWINS else 1
    assert all(number % times == 0 for number in recorded.sampled.values()), "twins sample the same"
    sampled = Counter({place: number // times for place, number in recorded.sampled.items()})
    return count(sampled, sequences) if sequences else Counts(1, refused=1)


def episodes(folder: Path, model_dir: str, *, generated: int, turns: int) -> Iterator[tuple[str, Episode]]:
    """Yield the contract's episodes, and generated ones with and without compaction, by name."""
    task, steps = write_task(folder / "task"), write_steps(folder / "steps")
    for name, (script, budgets, _) in EPISODES.items():
        yield name, Episode(task, model_dir, script, _SANDBOX, _SOLVED_WHEN, **budgets)
    for name, (script, _, budgets, _) in STEPS.items():
        yield name, Episode(steps, model_dir, script, _SANDBOX, _SOLVED_WHEN, **budgets)
    for seed in range(generated):
        kind = ("none", "window", "summary")[seed % 3]
        settings: dict[str, Any] = {} if kind == "none" else {"compaction": kind, "compact_at": 4000}
        where: dict[str, Any] = {"max_turns": 2 * turns, "settings": settings, "max_context_tokens": 200_000}
        yield f"{kind} {seed}", Episode(task, model_dir, Wandering(seed, turns), _SANDBOX, _SOLVED_WHEN, **where)


def is_left_out(door: str, name: str) -> bool:
    """Return whether an episode has another trainer's rule for its tokens at a door, as the documentation says."""
    rules = {
        "marks in output": "marks in content",
        "marks spelt by the policy": "marks in content",
        "thinking spelt": "thinking in marks of many tokens",
        "cut": "limits in tokens",
        "overflowing": "limits in tokens",
    }
    if door == "nemo-gym-agent" and name in STEPS:
        return True  # of an agent's several conversations a row has the one with the most sampled tokens
    return name in rules and door in DIFFERENCES[rules[name]].doors


async def bench_tokens(
    *, generated: int, turns: int, doors: Sequence[str], progress: Callable[[int, int], None]
) -> TokenReport:
    """Play every episode through every door whose engine is here, and count the tokens.

    Args:
        generated: Number of generated episodes, a third each without compaction, with a window, and with summaries.
        turns: Turns of a generated episode.
        doors: Names of the doors; empty for all.
        progress: Called with the number of doors played so far, and with all.
    """
    if importlib.util.find_spec("loguru") is not None:
        importlib.import_module("loguru").logger.disable("skyrl")  # a line for each episode
    found: dict[str, Counts | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        model_dir = Path(folder) / "tokenizer"
        byte_level_tokenizer().save_pretrained(str(model_dir))
        all_episodes = [*episodes(Path(folder), str(model_dir), generated=generated, turns=turns)]
        for number, door in enumerate(doors or ADAPTERS, start=1):
            counts: Counts | None = None
            engine = ENGINES.get(door, "tinker")
            if not engine or has_engine(engine):
                counts = Counts()
                for name, episode in all_episodes:
                    if not is_left_out(door, name):
                        counts += await play(door, episode)
            found[door] = counts
            progress(number, len(doors or ADAPTERS))
    return TokenReport(found)


def format_tokens(report: TokenReport) -> str:
    """Return the report as a table."""
    columns = [field.name for field in dataclasses.fields(Counts)]
    rows = [
        (door, *(f"{value:,}" for value in dataclasses.astuple(counts)))
        for door, counts in report.doors.items()
        if counts is not None
    ]
    total = sum((counts for counts in report.doors.values() if counts is not None), Counts())
    rows.append(("all", *(f"{value:,}" for value in dataclasses.astuple(total))))
    missing = [door for door, counts in report.doors.items() if counts is None]
    table = plain_table(("door", *columns), rows, right=range(1, len(columns) + 1))
    return f"{table}\nnot here: {', '.join(missing)}" if missing else table
