"""Fakes that wait for one another across processes. ``TerminalEnvConfig.sandbox`` takes them by import path."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from harbor_gym.testing import FakeEnvironment


class Meeting(FakeEnvironment):
    """A fake that starts when ``processes`` different ones have come; its verifier reports which one it ran in."""

    def __init__(self, *args: Any, place: str, processes: int, **kwargs: Any) -> None:
        self._place = Path(place)
        self._processes = processes
        super().__init__(*args, **kwargs)

    @override
    async def start(self, force_build: bool) -> None:
        (self._place / str(os.getpid())).touch()
        while len(list(self._place.iterdir())) < self._processes:  # noqa: ASYNC110 - other processes send no event
            await asyncio.sleep(0.01)
        await super().start(force_build)
        self._sign.touch()

    @override
    async def stop(self, delete: bool) -> None:
        self._sign.unlink(missing_ok=True)
        await super().stop(delete)

    @property
    def _sign(self) -> Path:
        """Is there as long as this sandbox runs."""
        return self._place.parent / f"running-{self.session_id}"

    @override
    def grade(self) -> Mapping[str, float] | None:
        return {"reward": 1.0, "process": float(os.getpid())}
