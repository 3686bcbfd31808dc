"""Harbor tasks in TRL's ``GRPOTrainer`` and ``AsyncGRPOTrainer`` (extra ``trl``).

:class:`HarborSpec` makes every argument that they take.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.async_worker import HarborRolloutWorker as HarborRolloutWorker
    from harbor_gym.adapters.trl.async_worker import RolloutProcessError as RolloutProcessError
    from harbor_gym.adapters.trl.bash import BASH_TOOL_VERSION as BASH_TOOL_VERSION
    from harbor_gym.adapters.trl.bash import BashHarness as BashHarness
    from harbor_gym.adapters.trl.harness import HarnessSettings as HarnessSettings
    from harbor_gym.adapters.trl.harness import ToolHarness as ToolHarness
    from harbor_gym.adapters.trl.jupyter import JUPYTER_TOOL_VERSION as JUPYTER_TOOL_VERSION
    from harbor_gym.adapters.trl.jupyter import JupyterHarness as JupyterHarness
    from harbor_gym.adapters.trl.notes import NOTES_TOOL_VERSION as NOTES_TOOL_VERSION
    from harbor_gym.adapters.trl.notes import TerminalNotesHarness as TerminalNotesHarness
    from harbor_gym.adapters.trl.rewards import verified_reward as verified_reward
    from harbor_gym.adapters.trl.rollouts import TerminalRollouts as TerminalRollouts
    from harbor_gym.adapters.trl.rollouts import rollout_reward as rollout_reward
    from harbor_gym.adapters.trl.spec import HarborSpec as HarborSpec
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".async_worker": "HarborRolloutWorker RolloutProcessError",
            ".bash": "BASH_TOOL_VERSION BashHarness",
            ".harness": "HarnessSettings ToolHarness",
            ".jupyter": "JUPYTER_TOOL_VERSION JupyterHarness",
            ".notes": "NOTES_TOOL_VERSION TerminalNotesHarness",
            ".rewards": "verified_reward",
            ".rollouts": "TerminalRollouts rollout_reward",
            ".spec": "HarborSpec",
        },
        requires=("trl", "datasets", "transformers", "torch"),
        install='"harbor-gym[trl]"',
    )
