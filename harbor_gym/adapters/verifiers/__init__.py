"""Harbor tasks in verifiers and Prime-RL (extra ``verifiers``): a taskset, a harness and an environment.

verifiers finds plugins as top-level modules: ``harbor_gym_verifiers`` exports all three.
A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.adapters.verifiers.env import HarborEnvConfig, HarborTerminalEnv
    from harbor_gym.adapters.verifiers.harness import HarborHarnessConfig, HarborTerminalHarness
    from harbor_gym.adapters.verifiers.taskset import (
        HarborTask,
        HarborTaskData,
        HarborTasksetConfig,
        HarborTerminalTaskset,
    )

PLUGIN_ID = "harbor-gym-verifiers"
"""The id under which verifiers finds the taskset, the harness and the environment."""

__all__ = [
    "PLUGIN_ID",
    "HarborEnvConfig",
    "HarborHarnessConfig",
    "HarborTask",
    "HarborTaskData",
    "HarborTasksetConfig",
    "HarborTerminalEnv",
    "HarborTerminalHarness",
    "HarborTerminalTaskset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "env": ("HarborEnvConfig", "HarborTerminalEnv"),
        "harness": ("HarborHarnessConfig", "HarborTerminalHarness"),
        "taskset": ("HarborTask", "HarborTaskData", "HarborTasksetConfig", "HarborTerminalTaskset"),
    },
    requires=("verifiers",),
    install='"harbor-gym[verifiers]"',
)
