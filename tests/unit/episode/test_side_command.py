"""A command beside the terminal: what fails there without a service is the sandbox's failure, not the caller's."""

from pathlib import Path
from typing import Any, override

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.errors import SandboxError
from harbor_gym.testing import FakeEnvironment
from tests.helpers.sandboxes.fake_episodes import fake_config


class Refusing(FakeEnvironment):
    """Fail at one command, by an error of this package that says nothing of a loss."""

    @override
    async def exec(self, command: str, *args: Any, **options: Any) -> Any:
        if command == "refused":
            raise SandboxError("no room")
        return await super().exec(command, *args, **options)


async def test_a_sandbox_that_refuses_a_command_has_failed(tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task", sandbox=f"{__name__}:Refusing")) as env:
        await env.reset()
        with pytest.raises(SandboxError, match="no room") as caught:
            await env.exec("refused", timeout_sec=5)
    assert caught.value.is_infrastructure
