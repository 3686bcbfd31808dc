"""Harbor tasks in TRL's ``GRPOTrainer`` and ``AsyncGRPOTrainer`` (extra ``trl``).

:class:`HarborSpec` makes every argument that they take.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.async_worker import HarborRolloutWorker, RolloutProcessError
    from harbor_gym.adapters.trl.bash import BASH_TOOL_VERSION, BashHarness
    from harbor_gym.adapters.trl.harness import HarnessSettings, ToolHarness
    from harbor_gym.adapters.trl.jupyter import JUPYTER_TOOL_VERSION, JupyterHarness
    from harbor_gym.adapters.trl.notes import NOTES_TOOL_VERSION, TerminalNotesHarness
    from harbor_gym.adapters.trl.rewards import verified_reward
    from harbor_gym.adapters.trl.rollouts import TerminalRollouts, rollout_reward
    from harbor_gym.adapters.trl.spec import HarborSpec

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "async_worker": ("HarborRolloutWorker", "RolloutProcessError"),
        "bash": ("BASH_TOOL_VERSION", "BashHarness"),
        "harness": ("HarnessSettings", "ToolHarness"),
        "jupyter": ("JUPYTER_TOOL_VERSION", "JupyterHarness"),
        "notes": ("NOTES_TOOL_VERSION", "TerminalNotesHarness"),
        "rewards": ("verified_reward",),
        "rollouts": ("TerminalRollouts", "rollout_reward"),
        "spec": ("HarborSpec",),
    },
    requires=("trl", "datasets", "transformers", "torch"),
    install='"harbor-gym[trl]"',
)
