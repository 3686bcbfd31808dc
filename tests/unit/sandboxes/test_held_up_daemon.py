"""Docker's client beside a daemon that answers nothing about one container, as for a FIFO in place of its accounts."""

import asyncio
import os
from pathlib import Path

import pytest

from harbor_gym.errors import SandboxTimeoutError
from harbor_gym.sandboxes.docker import downloads
from harbor_gym.sandboxes.docker import exec as commands
from harbor_gym.sandboxes.extensions import ExecTimeoutError
from tests.helpers.patience import PATIENCE_SEC


@pytest.fixture(autouse=True)
def silent_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a client on the path that prints nothing and does not end: a real daemon would stay held up for others."""
    (tmp_path / "docker").write_text("#!/bin/sh\nexec sleep 100000\n", encoding="utf-8")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


async def test_a_download_that_does_not_begin_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_BEGIN_TIMEOUT_SEC", 0.1)
    async with asyncio.timeout(PATIENCE_SEC):
        with pytest.raises(SandboxTimeoutError, match=r"docker cp one:/logs/\. did not begin"):
            await downloads.download_dir("one", "/logs", tmp_path / "back", limit_bytes=1)


async def test_a_command_that_has_not_begun_is_not_waited_for_to_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_END_TIMEOUT_SEC", 100_000.0)
    async with asyncio.timeout(PATIENCE_SEC):
        with pytest.raises(ExecTimeoutError):
            await commands.run_inside("one", "true", timeout_sec=0.1)
