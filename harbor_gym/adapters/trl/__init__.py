"""Harbor tasks in TRL's ``GRPOTrainer`` and ``AsyncGRPOTrainer`` (extra ``trl``).

:class:`HarborSpec` makes every argument that they take.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.async_worker import HarborRolloutWorker, RolloutProcessError
    from harbor_gym.adapters.trl.bash import BASH_TOOL_VERSION, BashHarness
    from harbor_gym.adapters.trl.harness import HarnessSettings, ToolHarness
    from harbor_gym.adapters.trl.jupyter import JUPYTER_TOOL_VERSION, JupyterHarness
    from harbor_gym.adapters.trl.notes import NOTES_TOOL_VERSION, TerminalNotesHarness
    from harbor_gym.adapters.trl.rewards import verified_reward
    from harbor_gym.adapters.trl.rollouts import TerminalRollouts, rollout_reward
    from harbor_gym.adapters.trl.spec import HarborSpec

_HOMES = {
    "BASH_TOOL_VERSION": "bash",
    "BashHarness": "bash",
    "HarborRolloutWorker": "async_worker",
    "HarborSpec": "spec",
    "HarnessSettings": "harness",
    "JUPYTER_TOOL_VERSION": "jupyter",
    "JupyterHarness": "jupyter",
    "NOTES_TOOL_VERSION": "notes",
    "RolloutProcessError": "async_worker",
    "TerminalNotesHarness": "notes",
    "TerminalRollouts": "rollouts",
    "ToolHarness": "harness",
    "rollout_reward": "rollouts",
    "verified_reward": "rewards",
}

_PACKAGES = ("trl", "datasets", "transformers", "torch")

__all__ = [
    "BASH_TOOL_VERSION",
    "JUPYTER_TOOL_VERSION",
    "NOTES_TOOL_VERSION",
    "BashHarness",
    "HarborRolloutWorker",
    "HarborSpec",
    "HarnessSettings",
    "JupyterHarness",
    "RolloutProcessError",
    "TerminalNotesHarness",
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
