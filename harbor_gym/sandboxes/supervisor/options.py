"""The options that all supervised sandboxes have, checked."""

from __future__ import annotations

import functools
import logging
from typing import Annotated, Literal

from harbor.models.task.config import NetworkMode, NetworkPolicy
from pydantic import AfterValidator, Field

from harbor_gym._runtime import rootless
from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym.sandboxes.options import SandboxOptions
from harbor_gym.sandboxes.supervisor.network import missing_packages
from harbor_gym.sandboxes.supervisor.program.messages import HOST_NAME

_logger = logging.getLogger(__name__)


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value!r} is no absolute path")
    return value


class NamespacedOptions(SandboxOptions):
    """The options of a supervised sandbox."""

    workdir: Annotated[str, AfterValidator(_absolute)] | None = None
    """Working directory if the task names none, instead of the image's."""

    max_processes: int = Field(default=1024, ge=1)
    """Processes and threads of the sandbox, at most."""

    processor_set: bool = True
    """Let its programs run on, and count, as many of this machine's processors as the task has ``cpus``, rounded up.
    Without it ``nproc`` counts all, as under ``docker run --cpus``; the share of processor time is the same."""

    processor_time: float | None = Field(default=None, ge=0.01)
    """Processors' time that it gets at most, in processors: 0.25 is a quarter of one's. ``nproc`` stays as it is. None:
    what the task has as ``cpus``."""

    host_name: str = Field(default=HOST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")
    """Its host name, which its /etc/hosts has, too."""

    network: Literal["task", "none", "machine"] = "task"
    """``"task"``: the task's own network; ``"none"``: only loopback; ``"machine"``: a public network is this machine's
    own, its loopback included. An allowlist always has a network of its own, unless there is none."""

    private_network: bool = False
    """Let a public network of the sandbox's own, or an allowlist, reach private networks and this machine's own
    addresses."""

    def has_network(self, policy: NetworkPolicy, task: str) -> bool:
        """Return whether a sandbox of ``task`` gets a network of its own under ``policy``.

        Raises:
            MissingDependencyError: It should, and a program is missing, or, for root, the device. An ordinary user
                can't add the device: the sandbox has no network then, and the log reports it once.
        """
        is_public, mode = policy.network_mode == NetworkMode.PUBLIC, policy.network_mode.value
        if self.network == "machine" if is_public else not policy.allowed_hosts:
            return False
        if self.network == "none":
            warn_once(f"sandbox option network='none': tasks whose network_mode is {mode} run without a network")
            return False
        if is_public and (missing := " and ".join(missing_packages())):
            raise MissingDependencyError(
                f"{task}: its network_mode is public, for which its sandbox needs {missing}: apt-get install -y "
                f"{missing.replace(' and ', ' ')} (or, if the task needs no network, the sandbox option network='none')"
            )
        refusal, fix = rootless.network_refusal()
        if refusal and not rootless.is_rootless():
            raise MissingDependencyError(f"{task}: its network_mode is {mode}, and {refusal}: {fix}")
        if refusal:
            warn_once(f"{refusal}: tasks whose network_mode is {mode} run without a network. To change that: {fix}")
        return not refusal


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, once per process."""
    _logger.warning(message)
