"""Harbor tasks in TRL's ``GRPOTrainer`` (extra ``trl``): :class:`HarborSpec` makes every argument that it takes.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.bash import BASH_TOOL_VERSION, BashHarness
    from harbor_gym.adapters.trl.harness import HarnessSettings, ToolHarness
    from harbor_gym.adapters.trl.rewards import verified_reward
    from harbor_gym.adapters.trl.rollouts import TerminalRollouts, rollout_reward
    from harbor_gym.adapters.trl.spec import HarborSpec

_HOMES = {
    "BASH_TOOL_VERSION": "bash",
    "BashHarness": "bash",
    "HarborSpec": "spec",
    "HarnessSettings": "harness",
    "TerminalRollouts": "rollouts",
    "ToolHarness": "harness",
    "rollout_reward": "rollouts",
    "verified_reward": "rewards",
}

_PACKAGES = ("trl", "datasets", "transformers", "torch")

__all__ = [
    "BASH_TOOL_VERSION",
    "BashHarness",
    "HarborSpec",
    "HarnessSettings",
    "TerminalRollouts",
    "ToolHarness",
    "rollout_reward",
    "verified_reward",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if missing := [package for package in _PACKAGES if find_spec(package) is None]:
        message = f'harbor_gym.adapters.trl needs {missing[0]}: pip install "harbor-gym[trl]"'
        raise MissingDependencyError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
