"""A verifier that writes much costs the process that trains little memory."""

import asyncio
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.procfs import size_bytes
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

MOST_BYTES = 32 << 20
REWARD = "#!/bin/bash\necho 1 >/logs/verifier/reward.txt\n"
MUCH = REWARD + (
    "mkdir /logs/verifier/data && cd /logs/verifier/data && seq 20000 | split -l 1 -a 5 -d -\n"
    "head -c 100M /dev/zero | tr '\\0' x | fold\n"
)


async def test_a_hundred_megabytes_and_twenty_thousand_files(tmp_path: Path) -> None:
    peaks: list[int] = []
    for name, test_sh in (("little", REWARD), ("much", MUCH)):
        config = TerminalEnvConfig(task_dir=write_task(tmp_path / name, test_sh=test_sh))
        async with AsyncTerminalGymEnv(config) as env:
            await env.reset()
            await asyncio.to_thread(Path("/proc/self/clear_refs").write_text, "5", "ascii")  # the peak; proc(5)
            end = await env.finish()
        assert end.reward == 1.0
        peaks.append(size_bytes("self/status", "VmHWM") or 0)
    assert len(end.info.get("verifier_files", {})) == 50
    assert len(end.info.get("verifier_output", "")) < 10_000
    assert peaks[1] - peaks[0] < MOST_BYTES, peaks
