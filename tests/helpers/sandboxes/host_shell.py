"""A sandbox that runs commands in a real shell of this machine, for code that only calls ``exec``."""

import asyncio
from typing import Any

from harbor.environments.base import ExecResult


class HostShell:
    """Runs commands here, and notes how it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def exec(self, command: str, **settings: Any) -> ExecResult:
        """Run a command with bash; its errors go nowhere."""
        assert settings["timeout_sec"] > 0, "a sandbox that hangs holds nobody up"
        self.asked.append(settings)
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        return ExecResult(stdout=output.decode(), return_code=process.returncode or 0)
