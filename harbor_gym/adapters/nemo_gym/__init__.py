"""Harbor tasks as a NeMo Gym agent server (extra ``nemo-gym``, Python 3.13.14 and later): :class:`HarborGymAgent`.

Each name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`. ``harbor-gym nemo-gym init`` writes the folder that NeMo Gym starts.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.nemo_gym.agent import HarborGymAgent as HarborGymAgent
    from harbor_gym.adapters.nemo_gym.agent import HarborGymAgentConfig as HarborGymAgentConfig
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".agent": "HarborGymAgent HarborGymAgentConfig",
        },
        requires=("nemo_gym",),
        install='"harbor-gym[nemo-gym]" on Python 3.13.14',
    )
