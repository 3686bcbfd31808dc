"""Demonstrations for warm-starting a tiny policy: a scripted demonstrator plays a task in the real environment.

The script lies in the task's folder, ``demonstrations/moves.json``: stages with weighted moves, some of them slow or
wrong on purpose, so that an imitator starts with something left to learn.
"""

import asyncio
import json
import logging
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError, TaskError
from harbor_gym.formats import prompts
from harbor_gym.types import EndReason

_log = logging.getLogger(__name__)

MOVES_PATH = Path("demonstrations") / "moves.json"
"""Where a task keeps its script, below the task directory."""

_DURATION_SEC = 1.0
_ATTEMPTS = 3
"""Sandboxes that one episode may use up before an infrastructure failure is passed on."""

Message = dict[str, str]


def _compilable(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise ValueError(f"not a regular expression: {exc}") from exc
    return pattern


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Move(_Model):
    """One message that the demonstrator may write."""

    kind: Literal["good", "dawdle", "mistake"]
    """What it is to a person; it decides nothing."""

    weight: float = Field(gt=0)
    """Relative to the other moves of the stage."""

    analysis: str
    plan: str

    keystrokes: str | None = None
    """What to type. None declares the task complete."""

    next: str | None = None
    """The stage that follows if no stage recognises the observation. None: the same stage again."""

    def text(self) -> str:
        """Return the move as one terminus-json-plain message, always with the same keys in the same order."""
        commands = [] if self.keystrokes is None else [{"keystrokes": self.keystrokes, "duration": _DURATION_SEC}]
        message = {
            "analysis": self.analysis,
            "plan": self.plan,
            "commands": commands,
            "task_complete": self.keystrokes is None,
        }
        return json.dumps(message, separators=(",", ":"))


class Stage(_Model):
    """What can be seen at one point of the work, and what the demonstrator does there."""

    seen: Annotated[str, AfterValidator(_compilable)] | None = None
    """Regular expression (multi-line) that recognises the stage in an observation. None: reached by ``next`` only."""

    moves: tuple[Move, ...] = Field(min_length=1)


class Script(_Model):
    """A demonstrator's whole behaviour."""

    format_version: Literal[1]

    max_turns: int = Field(ge=1)
    """The turn budget that the weights are made for."""

    first_stage: str
    stages: dict[str, Stage]

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        named = {move.next for stage in self.stages.values() for move in stage.moves if move.next is not None}
        if unknown := sorted((named | {self.first_stage}) - self.stages.keys()):
            raise ValueError(f"no such stage: {', '.join(unknown)}; there are: {', '.join(self.stages)}")
        return self


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One recorded episode."""

    messages: tuple[Message, ...]
    """The conversation as a chat policy would have it, from the system message to its last answer."""

    reward: float
    turns: int
    end_reason: EndReason


class Demonstrator:
    """Plays a script by what it sees: the newest observation and its own last move.

    Args:
        script: The stages and their moves.
        rng: The only source of chance.
    """

    def __init__(self, script: Script, rng: random.Random) -> None:
        self._script = script
        self._rng = rng
        self._stage = script.first_stage
        self._last: Move | None = None

    def answer(self, observation: str) -> Move:
        """Return the move for the newest observation."""
        if self._last is not None and self._last.keystrokes is None:
            return self._last  # The episode goes on after a declaration only to have it confirmed.
        self._stage = self._recognise(observation)
        moves = self._script.stages[self._stage].moves
        self._last = self._rng.choices(moves, weights=[move.weight for move in moves])[0]
        return self._last

    def _recognise(self, observation: str) -> str:
        for name, stage in self._script.stages.items():
            if stage.seen is not None and re.search(stage.seen, observation, re.MULTILINE):
                return name
        return (self._last.next if self._last is not None else None) or self._stage


def load_script(task_dir: Path) -> Script:
    """Read a task's demonstrator.

    Raises:
        TaskError: The task has none, or it is malformed.
    """
    path = task_dir / MOVES_PATH
    if not path.is_file():
        raise TaskError(
            f"{task_dir} has no {MOVES_PATH}, which the built-in tiny policy is warm-started from; write one "
            "(tasks/devops_task/README.md explains the format), or bring a policy with --model-name MODEL_DIRECTORY"
        )
    try:
        return Script.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise TaskError(f"{path} is no usable script: {exc}") from exc


async def play_demonstrations(
    task_dir: Path,
    *,
    sandbox: str,
    episodes: int = 200,
    seed: int = 0,
    concurrency: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> list[Demonstration]:
    """Play a task's demonstrator and return its episodes, good and bad ones alike. Success rate and turns are logged.

    The same seed gives the same moves as long as the task shows the same text; the order of the result does not
    depend on ``concurrency``.

    Args:
        task_dir: A Harbor task directory with ``demonstrations/moves.json``.
        sandbox: As ``TerminalEnvConfig.sandbox``.
        episodes: How many to play.
        seed: Of the demonstrator's choices.
        concurrency: Sandboxes at once.
        progress: Called after each episode with the number finished and the number asked for.

    Raises:
        TaskError: The task is malformed or has no demonstrator.
        HarborGymError: The infrastructure failed again and again.
    """
    script = await asyncio.to_thread(load_script, task_dir)
    config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, max_turns=script.max_turns)
    slots = asyncio.Semaphore(concurrency)
    finished = 0

    async def play(index: int) -> Demonstration:
        nonlocal finished
        async with slots:
            demonstration = await _play_surviving(config, script, f"{seed}/{index}")
        finished += 1
        if progress is not None:
            progress(finished, episodes)
        return demonstration

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(play(index)) for index in range(episodes)]
    except BaseExceptionGroup as failures:
        # The first failure cancelled the other episodes; it is the one that callers can act on.
        raise failures.exceptions[0] from failures
    played = [task.result() for task in tasks]
    _log.info("demonstrations of %s: %s", task_dir, summary(played))
    return played


def summary(played: Sequence[Demonstration]) -> str:
    """Return one line on success rate, turns and end reasons."""
    if not played:
        return "no episodes"
    reasons = sorted({demonstration.end_reason.value for demonstration in played})
    counts = ", ".join(f"{sum(item.end_reason == reason for item in played)} {reason}" for reason in reasons)
    solved = fmean(item.reward >= 1 for item in played)
    return f"{len(played)} episodes, {solved:.0%} solved, {fmean(item.turns for item in played):.2f} turns; {counts}"


async def _play_surviving(config: TerminalEnvConfig, script: Script, seed: str) -> Demonstration:
    """Play one episode; after an infrastructure failure play it anew, with the same choices, in a fresh sandbox."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await _play(config, Demonstrator(script, random.Random(seed)))
        except HarborGymError as exc:
            if not exc.is_infrastructure or attempt == _ATTEMPTS:
                raise
            _log.warning("demonstration %s, attempt %d of %d: %s", seed, attempt, _ATTEMPTS, exc)
    raise AssertionError("the last attempt returns or raises")


async def _play(config: TerminalEnvConfig, demonstrator: Demonstrator) -> Demonstration:
    async with AsyncTerminalGymEnv(config) as env:
        observation, info = await env.reset()
        messages = [
            {"role": "system", "content": prompts.system_prompt()},
            {"role": "user", "content": prompts.first_message(info.get("instruction", ""), observation)},
        ]
        turns, reward, done = 0, 0.0, False
        while not done:
            text = demonstrator.answer(observation).text()
            messages.append({"role": "assistant", "content": text})
            observation, reward, done, info = await env.step(text)
            turns += 1
            if not done:
                messages.append({"role": "user", "content": observation})
        return Demonstration(tuple(messages), reward, turns, info.get("end_reason", EndReason.COMPLETED))
