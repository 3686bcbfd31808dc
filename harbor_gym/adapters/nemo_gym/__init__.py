"""Harbor tasks as a NeMo Gym agent server (extra ``nemo-gym``, Python 3.13.14 and later): :class:`HarborGymAgent`.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`. ``harbor-gym nemo-gym init`` writes the folder that NeMo Gym starts.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

if TYPE_CHECKING:
    from harbor_gym.adapters.nemo_gym.agent import HarborGymAgent, HarborGymAgentConfig

_NAMES = ("HarborGymAgent", "HarborGymAgentConfig")

__all__ = ["HarborGymAgent", "HarborGymAgentConfig"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("nemo_gym") is None:
        message = 'harbor_gym.adapters.nemo_gym needs NeMo Gym: pip install "harbor-gym[nemo-gym]" on Python 3.13.14'
        raise MissingDependencyError(message)
    return getattr(import_module(f"{__name__}.agent"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
