"""Harbor tasks in verifiers and Prime-RL (extra ``verifiers``): a taskset, a harness and an environment.

verifiers finds plugins as top-level modules: ``harbor_gym_verifiers`` exports all three.
Each name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

PLUGIN_ID = "harbor-gym-verifiers"
"""The id under which verifiers finds the taskset, the harness and the environment."""

if TYPE_CHECKING:
    from harbor_gym.adapters.verifiers.env import HarborEnvConfig as HarborEnvConfig
    from harbor_gym.adapters.verifiers.env import HarborTerminalEnv as HarborTerminalEnv
    from harbor_gym.adapters.verifiers.harness import HarborHarnessConfig as HarborHarnessConfig
    from harbor_gym.adapters.verifiers.harness import HarborTerminalHarness as HarborTerminalHarness
    from harbor_gym.adapters.verifiers.taskset import HarborTask as HarborTask
    from harbor_gym.adapters.verifiers.taskset import HarborTaskData as HarborTaskData
    from harbor_gym.adapters.verifiers.taskset import HarborTasksetConfig as HarborTasksetConfig
    from harbor_gym.adapters.verifiers.taskset import HarborTerminalTaskset as HarborTerminalTaskset
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".env": "HarborEnvConfig HarborTerminalEnv",
            ".harness": "HarborHarnessConfig HarborTerminalHarness",
            ".taskset": "HarborTask HarborTaskData HarborTasksetConfig HarborTerminalTaskset",
            ".": "PLUGIN_ID",
        },
        requires=("verifiers",),
        install='"harbor-gym[verifiers]"',
    )
