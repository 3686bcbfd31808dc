"""Harbor tasks in verl (extra ``verl``, in a separate environment): two agent loops, and a writer of datasets.

Each name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.verl.dataset import write_dataset as write_dataset
    from harbor_gym.adapters.verl.loops import HarborAgentLoop as HarborAgentLoop
    from harbor_gym.adapters.verl.loops import HarborTerminalLoop as HarborTerminalLoop
    from harbor_gym.adapters.verl.settings import LoopSettings as LoopSettings
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".dataset": "write_dataset",
            ".loops": "HarborAgentLoop HarborTerminalLoop",
            ".settings": "LoopSettings",
        },
        requires=("verl", "pyarrow"),
        install='"harbor-gym[verl]"',
    )
