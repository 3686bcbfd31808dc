"""Fakes whose reward depends on the typed keys alone. ``TerminalEnvConfig.sandbox`` takes them by import path."""

from collections.abc import Mapping, Sequence
from typing import override

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import Terminal, TerminalTurn
from harbor_gym.testing import FakeEnvironment
from harbor_gym.testing.fake.terminal import FakeTerminal
from harbor_gym.types import Command


class Judged(FakeEnvironment):
    """A fake that any policy earns something in: the share of small letters among the keys."""

    typed = ""

    @override
    async def make_terminal(self, config: TerminalConfig, *, user: str | int | None) -> Terminal:
        return _Overheard(self, config, user=user)

    @override
    def grade(self) -> Mapping[str, float] | None:
        return {"reward": sum(key.islower() for key in self.typed) / max(1, len(self.typed))}


class _Overheard(FakeTerminal):
    def __init__(self, environment: Judged, config: TerminalConfig, *, user: str | int | None) -> None:
        super().__init__(environment, config, user=user)
        self._judged = environment

    @override
    async def run(self, commands: Sequence[Command]) -> TerminalTurn:
        self._judged.typed += "".join(command.keystrokes for command in commands)
        return await super().run(commands)
