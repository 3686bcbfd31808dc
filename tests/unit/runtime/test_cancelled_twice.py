"""A call that is cancelled, once or again, returns only after its work has ended."""

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from harbor_gym._runtime import cache
from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym.episode.episode import AgentPhase, run_in_phase
from harbor_gym.episode.guarded_turn import take_turn
from harbor_gym.sandboxes.images import layers
from harbor_gym.terminal import Terminal, TerminalTurn
from harbor_gym.terminal.transports.channel import Channel
from harbor_gym.types import Command
from tests.helpers.patience import PATIENCE_SEC

_STEPS = 20


class Cleanup:
    """Work that takes its time to end when it is cancelled."""

    def __init__(self) -> None:
        self.is_over = False

    async def run(self, *_: object) -> TerminalTurn:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            self.is_over = True
        raise AssertionError


async def cancel_again_and_again(work: Coroutine[Any, Any, object]) -> None:
    """Start ``work``, and cancel it in every pass of the loop until it returns."""
    caller = asyncio.create_task(work)
    for _ in range(_STEPS):
        await asyncio.sleep(0)
    while not caller.done():
        caller.cancel()
        await asyncio.sleep(0)
    assert caller.cancelled()


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split())


async def test_a_task_is_waited_for_to_its_end() -> None:
    cleanup = Cleanup()
    task = asyncio.create_task(cleanup.run())
    await asyncio.sleep(0)
    await cancel_again_and_again(cancel_and_wait(task))
    assert cleanup.is_over


async def test_work_in_a_phase_is_over() -> None:
    cleanup = Cleanup()
    phase = cast("AgentPhase", type("Phase", (), {"context": contextvars.copy_context()}))
    await cancel_again_and_again(run_in_phase(phase, cleanup.run()))
    assert cleanup.is_over


async def test_a_turn_is_over() -> None:
    async def find_breakage(_: Exception | None) -> None:
        return None

    cleanup = Cleanup()
    turn = take_turn(cast("Terminal", cleanup), [Command("ls\n")], late_sec=60, find_breakage=find_breakage)
    await cancel_again_and_again(turn)
    assert cleanup.is_over


async def test_a_channels_process_is_reaped() -> None:
    deaf = "import sys, time; print('ready', flush=True); time.sleep(600)"
    others = children()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", deaf, stdin=pipe, stdout=pipe)
    channel = await Channel.open(process, ready="ready", max_answer_bytes=1000, timeout_sec=PATIENCE_SEC)
    (child,) = children() - others
    await cancel_again_and_again(channel.close())
    assert child not in children()


async def test_a_folder_that_is_being_made_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path))
    begun, may_make, make = threading.Event(), threading.Event(), layers._make  # pyright: ignore[reportPrivateUsage]  # its moment

    def slowly(folder: Path) -> None:
        begun.set()
        may_make.wait(PATIENCE_SEC)
        make(folder)

    async def stage() -> None:
        async with layers.staging():
            raise AssertionError

    monkeypatch.setattr(layers, "_make", slowly)
    staged = asyncio.create_task(stage())
    await asyncio.to_thread(begun.wait, PATIENCE_SEC)
    staged.cancel()
    await asyncio.sleep(0.05)
    assert not staged.done()
    may_make.set()
    with pytest.raises(asyncio.CancelledError):
        await staged
    assert list(cache.layers_dir().glob(".partial-*")) == []
