"""Fake sandboxes with a clock of their own, or with a record of events; found by import path."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar, override

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import Terminal
from harbor_gym.testing import FakeEnvironment
from harbor_gym.testing.fake.shell import FakeShell, Output, Program
from harbor_gym.testing.fake.terminal import FakeTerminal

CLOCK = SimpleNamespace(now=0.0, monotonic=lambda: CLOCK.now)


class Working(FakeEnvironment):
    """A fake in which time passes only during work, and then at once."""

    @override
    def programs(self) -> Mapping[str, Program]:
        async def work(shell: FakeShell, words: list[str], output: Output) -> int:
            CLOCK.now += float(words[0])
            return 0

        return {"work": work}


class Counted(FakeEnvironment):
    """A fake whose starts are counted."""

    PATH = "tests.helpers.sandboxes.timed_fakes:Counted"
    started: ClassVar[int] = 0

    @override
    async def start(self, force_build: bool) -> None:
        Counted.started += 1
        await super().start(force_build)


class Noting(FakeEnvironment):
    """A fake that notes the end of its terminals, and whose rewards fall from step to step."""

    noted: ClassVar[list[str]] = []

    @override
    async def make_terminal(self, config: TerminalConfig, *, user: str | int | None) -> Terminal:
        return NotingTerminal(self, config, user=user)

    @override
    def grade(self) -> Mapping[str, float]:
        Noting.noted.append("grade")
        return {"reward": 1.0 / Noting.noted.count("grade")}


class NotingTerminal(FakeTerminal):
    """Notes its end with its sandbox."""

    @override
    async def detach(self) -> None:
        Noting.noted.append("detach")

    @override
    async def close(self) -> None:
        Noting.noted.append("close")
        await super().close()


class Unrestored(FakeEnvironment):
    """A fake in which the end of each agent phase fails, as Harbor's restoring of a network can."""

    entered = 0

    @override
    @contextmanager
    def scoped_exec_env(self, env: dict[str, str]) -> Generator[None]:
        with super().scoped_exec_env(env):
            yield
        self.entered += 1
        if self.entered > 1:  # the first is the agent's set-up
            raise ConnectionError("the network can't be restored")
