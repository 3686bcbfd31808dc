"""Sandboxes that end at a random moment of some episodes. ``TerminalEnvConfig.sandbox`` takes them by import path."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, override

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.testing import FakeEnvironment
from harbor_gym.testing.fake.environment import FailurePoint

MOMENTS: tuple[tuple[str, Mapping[FailurePoint, int]], ...] = (
    ("SandboxStartError", {"start": 1}),
    ("SandboxLostError", {"exec": 1}),
    ("SandboxLostError", {"exec": 2}),
    ("VerifierError", {"verifier": 1}),
)
"""The points at which an episode of two commands can be lost, with the error of each."""


class Flaky(FakeEnvironment):
    """A fake that is lost in ``share`` of the episodes, and counts the outcomes of all of them."""

    lots: ClassVar[random.Random]
    lost: ClassVar[Counter[str]]
    graded: ClassVar[list[float]]

    @classmethod
    def begin(cls, seed: int) -> None:
        """Forget all earlier episodes."""
        cls.lots, cls.lost, cls.graded = random.Random(seed), Counter(), []

    def __init__(self, *args: Any, share: float, **kwargs: Any) -> None:
        fail: Mapping[FailurePoint, int] = {}
        if self.lots.random() < share:
            name, fail = self.lots.choice(MOMENTS)
            self.lost[name] += 1
        super().__init__(*args, fail=fail, **kwargs)

    @override
    def grade(self) -> Mapping[str, float] | None:
        rewards = super().grade()
        assert rewards is not None
        self.graded.append(rewards["reward"])
        return rewards


class FirstIsLost(LocalEnvironment):
    """Real sandboxes. The first goes away when it is to be graded; the others are graded when its trial has ended."""

    made: ClassVar[int] = 0
    ended: ClassVar[asyncio.Event]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_first, self._is_lost = FirstIsLost.made == 0, False
        if self._is_first:
            FirstIsLost.ended = asyncio.Event()
        FirstIsLost.made += 1

    @override
    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        if target_dir == "/tests" and self._is_first:
            await self.stop(delete=True)
            self._is_lost = True
        elif target_dir == "/tests":
            await self.ended.wait()
        await super().upload_dir(source_dir, target_dir)

    @override
    async def stop(self, delete: bool) -> None:
        await super().stop(delete)
        if self._is_lost:
            self.ended.set()
