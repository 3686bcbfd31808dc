"""One network for all Docker sandboxes of a process, from its first sandbox to its end."""

from __future__ import annotations

import contextlib
import subprocess
from multiprocessing.util import Finalize

from harbor_gym._runtime.cache import locked
from harbor_gym._runtime.owners import owner_label
from harbor_gym.sandboxes.docker.engine import docker, labels
from harbor_gym.sandboxes.errors import SandboxStartError

_NO_TALK = "com.docker.network.bridge.enable_icc=false"
"""Containers of one bridge can't reach one another: episodes must not interfere."""

_REMOVAL_TIMEOUT_SEC = 20.0


class SharedNetwork:
    """The network of all sandboxes of this process that only need outgoing connections.

    It stays when the last of them stops, as making and removing a network costs as much as a container. It is removed
    when the process ends, or by a reaper after a kill. With a network for each, Docker's address pools would allow some
    30 sandboxes.
    """

    def __init__(self) -> None:
        self._made: str | None = None

    @staticmethod
    def name() -> str:
        """Return the network's name in this process."""
        return f"harbor-gym-{owner_label()}"

    def is_missing(self, answer: str) -> bool:
        """Return whether Compose reported that the network is gone (``docker network prune`` removes it)."""
        ends = ("not found", "declared as external, but could not be found")
        return any(f"network {self.name()} {end}" in answer for end in ends)

    async def make(self, *, anew: bool = False) -> None:
        """Make sure that the network exists.

        Args:
            anew: Whether it was found missing.

        Raises:
            SandboxStartError: Docker can't make it.
        """
        name = self.name()
        if self._made == name and not anew:
            return
        async with locked("docker-network"):
            if self._made == name and not anew:
                return
            texts = [f"{key}={value}" for key, value in labels().items()]
            options = ["--opt", _NO_TALK, *(word for text in texts for word in ("--label", text))]
            if self._made != name:
                # Runs at the end of multiprocessing's workers too, which atexit's functions do not.
                Finalize(None, _remove, (name,), exitpriority=0)
                self._made = name
            code, output = await docker("network", "create", *options, name)
            if code != 0 and "already exists" not in output:
                self._made = None
                raise SandboxStartError(f"docker can't make a network for the sandboxes: {output.strip()}")


def _remove(name: str) -> None:
    # Docker refuses while a container is in it; a reaper removes both later.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            ["docker", "network", "rm", name], capture_output=True, check=False, timeout=_REMOVAL_TIMEOUT_SEC
        )


SHARED_NETWORK = SharedNetwork()
