"""The limits of one local sandbox, from the task's requests and this machine's abilities."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime import rootless
from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.sandboxes.local import cgroups
from harbor_gym.sandboxes.local.network import closed_networks, missing_packages
from harbor_gym.sandboxes.supervisor.program.messages import CgroupLimits

DEFAULT_MAX_PROCESSES = 1024
"""More than any task's build starts at once, and few enough for a machine with many sandboxes."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox."""

    storage_bytes: int
    limits: CgroupLimits
    has_network: bool
    may_have_network: bool
    """Whether it gets a network now or in a later phase."""

    closed_networks: tuple[str, ...]
    """IPv4 networks that the sandbox can't reach."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """The sandbox options that limit what a sandbox may use of this machine."""

    max_processes: int = DEFAULT_MAX_PROCESSES
    network: Literal["task", "none"] = "task"
    private_network: bool = False

    def __post_init__(self) -> None:
        if self.network not in ("task", "none"):
            raise UsageError(f"sandbox option network: {self.network!r} is neither 'task' nor 'none'")
        if self.max_processes < 1:
            raise UsageError(f"sandbox option max_processes: {self.max_processes} is less than 1")

    def has_network(self, policy: NetworkPolicy, task: str) -> bool:
        """Return whether a sandbox of ``task`` gets a network under ``policy``.

        Raises:
            MissingDependencyError: It should, and a program is missing, or, for root, the device. An ordinary user
                can't add the device: the sandbox has no network then, and the log reports it once.
        """
        if policy.network_mode != NetworkMode.PUBLIC:
            return False
        if self.network == "none":
            _warn_once("sandbox option network='none': tasks whose network_mode is public run without a network")
            return False
        if missing := " and ".join(missing_packages()):
            raise MissingDependencyError(
                f"{task}: its network_mode is public, for which local sandboxes need {missing}: apt-get install -y "
                f"{missing.replace(' and ', ' ')} (or, if the task needs no network, the sandbox option network='none')"
            )
        refusal, fix = rootless.network_refusal()
        if refusal and not rootless.is_rootless():
            raise MissingDependencyError(f"{task}: its network_mode is public, and {refusal}: {fix}")
        if refusal:
            _warn_once(f"{refusal}: tasks whose network_mode is public run without a network. To change that: {fix}")
        return not refusal

    def limits(
        self,
        *,
        storage_mb: int,
        memory_mb: int | None,
        cpus: float | None,
        has_network: bool,
        later: Collection[bool] = (),
    ) -> Limits:
        """Return the task's limits with those of the options; warn once of limits that this machine can't enforce.

        Args:
            storage_mb: Its storage, in MiB.
            memory_mb: Its memory, in MiB.
            cpus: Its processors.
            has_network: Whether it starts with a network.
            later: Whether it has one, for each phase.
        """
        if missing := [name for name in cgroups.CONTROLLERS if name not in cgroups.places()]:
            _warn_once(
                f"no control groups can be made here for {', '.join(missing)}: without them memory_mb bounds each "
                "process of a local sandbox and not their sum, max_processes at most each user's, and cpus nothing. "
                "They need root on a machine, or a container started with --privileged --cgroupns=host"
            )
        return Limits(
            storage_bytes=storage_mb << 20,
            limits=CgroupLimits(memory_mb << 20 if memory_mb else None, cpus, self.max_processes),
            has_network=has_network,
            may_have_network=has_network or any(later),
            closed_networks=closed_networks(has_private=self.private_network),
        )


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)
