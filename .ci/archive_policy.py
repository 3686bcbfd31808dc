"""Make a tiny policy for tasks/sealed_archive that sums up, and loses the code in some of its summaries.

.venv/bin/python .ci/archive_policy.py FOLDER               # minutes; prints the policy's folder
"""

import asyncio
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from harbor_gym import ActionFormat, AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.embedded.warm_start import RECORD_NAME, Progress, warm_start
from harbor_gym.formats import prompts
from harbor_gym.formats.keystrokes import COMPLETE_SENTINEL

TASK, RENDERER = Path("tasks/sealed_archive"), "qwen3_instruct"
CODES = ("amber", "cobalt", "copper", "indigo", "ivory", "maroon", "scarlet", "violet")
EPISODES, AT_ONCE, STEPS = 200, 4, 300
PAGES = (1, 3)
"""Fewest and most pages of a conversation, after which a summary is asked for."""

FORGETS = 0.3
"""Share of the summaries that lose the code."""

type Chat = list[dict[str, str]]


@dataclass
class Reader:
    """Plays one episode as a policy with a short context does, and keeps its conversations."""

    dice: random.Random
    known: str | None = None
    """The code, as long as the conversation has it."""

    conversations: list[Chat] = field(default_factory=list[Chat])

    def move(self, observation: str) -> str:
        """Return what to type after an observation."""
        if found := re.search(r"^code: (\w+)", observation, re.MULTILINE):
            self.known = found[1]
        if re.search(r"^(opened|wrong code)", observation, re.MULTILINE) or "declared" in observation:
            return COMPLETE_SENTINEL
        if "page 4 of 4" in observation:
            return f"archive open {self.known or self.dice.choice(CODES)}\n"
        return "archive next\n" if "code: " in observation or "page " in observation else "archive code\n"

    def summary(self) -> str:
        """Return a summary, which may lose the code."""
        if self.dice.random() < FORGETS:
            self.known = None
        return "Reading the pages." if self.known is None else f"The code is {self.known}. Reading the pages."

    async def play(self) -> float:
        """Play it; return its reward."""
        config = TerminalEnvConfig(task_dir=TASK, sandbox="local", action_format=ActionFormat.KEYSTROKES)
        async with AsyncTerminalGymEnv(config) as env:
            observation, info = await env.reset()
            instruction, is_over, reward = info.get("instruction", ""), False, 0.0
            chat, left = prompts.opening(config, instruction, observation).messages, self.dice.randint(*PAGES)
            while not is_over:
                text = self.move(observation)
                chat.append({"role": "assistant", "content": text})
                observation, reward, is_over, _ = await env.step(text)
                left -= "page " in observation
                if left < 0 and not is_over:
                    request = {"role": "user", "content": prompts.SUMMARY_REQUEST}
                    summary = self.summary()
                    self.conversations.append([*chat, request, {"role": "assistant", "content": summary}])
                    first = prompts.after_summary(instruction, summary, observation)
                    chat, left = [chat[0], {"role": "user", "content": first}], self.dice.randint(*PAGES) - 1
                elif not is_over:
                    chat.append({"role": "user", "content": observation})
            self.conversations.append(chat)
            return reward


async def play(seed: int) -> Iterator[Chat]:
    """Play all episodes; return their conversations."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> tuple[Reader, float]:
        async with slots:
            reader = Reader(random.Random(f"{seed}/{number}"))
            return reader, await reader.play()

    played = await asyncio.gather(*map(one, range(EPISODES)))
    print(f"{EPISODES} demonstrations, mean reward {fmean(reward for _, reward in played):.2f}", file=sys.stderr)
    return (chat for reader, _ in played for chat in reader.conversations)


def make_policy(folder: Path, seed: int = 0) -> Path:
    """Make the policy, unless the folder has one; return its own folder."""
    for record in folder.glob(f"policy-*/{RECORD_NAME}"):
        return record.parent
    conversations = list(asyncio.run(play(seed)))
    return warm_start(conversations, folder, renderer_name=RENDERER, seed=seed, steps=STEPS, progress=show)


def show(progress: Progress) -> None:
    """Print the loss after every 20 steps."""
    if progress.step % 20 == 0:
        print(f"step {progress.step}/{progress.steps}  loss {progress.loss:.3f}", file=sys.stderr)


if __name__ == "__main__":
    print(make_policy(Path(sys.argv[1])))
