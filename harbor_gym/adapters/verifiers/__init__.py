"""Harbor tasks in verifiers and Prime-RL (extra ``verifiers``): a taskset, a harness and an environment.

verifiers finds plugins as top-level modules: ``harbor_gym_verifiers`` exports all three.
A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

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

_HOMES = {
    "HarborEnvConfig": "env",
    "HarborHarnessConfig": "harness",
    "HarborTask": "taskset",
    "HarborTaskData": "taskset",
    "HarborTasksetConfig": "taskset",
    "HarborTerminalEnv": "env",
    "HarborTerminalHarness": "harness",
    "HarborTerminalTaskset": "taskset",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("verifiers") is None:
        message = 'harbor_gym.adapters.verifiers needs verifiers: pip install "harbor-gym[verifiers]"'
        raise MissingDependencyError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
