"""The names of TRL's AsyncGRPO, wherever the installed TRL has them: imported when they are first used.

TRL 1.18 moved them out of ``trl.experimental`` (huggingface/trl#7841) and renamed settings. What its release page does
not say is refused here, until that TRL was run. No other module names their homes.
"""

import importlib
import importlib.metadata
import re
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import UsageError

if TYPE_CHECKING:
    from trl.experimental.async_grpo import async_grpo_trainer as async_grpo_trainer
    from trl.experimental.async_grpo import packing as packing
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig as AsyncGRPOConfig
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer as AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample as RolloutSample

RUN = "trl>=1.16,<1.17"
"""The releases with which AsyncGRPO was run."""

_MOVED = (1, 18)
"""The release since which the names are elsewhere."""

_EXPERIMENTAL = {
    "AsyncGRPOConfig": "trl.experimental.async_grpo.async_grpo_config:AsyncGRPOConfig",
    "AsyncGRPOTrainer": "trl.experimental.async_grpo.async_grpo_trainer:AsyncGRPOTrainer",
    "RolloutSample": "trl.experimental.async_grpo.async_rollout_worker:RolloutSample",
    "async_grpo_trainer": "trl.experimental.async_grpo.async_grpo_trainer",
    "packing": "trl.experimental.async_grpo.packing",
}
"""Name → its module before 1.18, and its name there."""

_STABLE = {
    "AsyncGRPOConfig": "trl:AsyncGRPOConfig",
    "AsyncGRPOTrainer": "trl:AsyncGRPOTrainer",
    "async_grpo_trainer": "trl.trainer.async_grpo_trainer",
}
"""The same since 1.18, as far as it is published. The old package would warn of its end in 2.0."""


def load(name: str) -> Any:
    """Return a class or module of TRL's AsyncGRPO.

    Raises:
        AttributeError: This module has no such name.
        UsageError: The installed TRL has it elsewhere, or no longer.
    """
    if name not in _EXPERIMENTAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = (_STABLE if _is_moved() else _EXPERIMENTAL).get(name)
    if home is None:
        raise _unknown(name)
    module, _, attribute = home.partition(":")
    found = importlib.import_module(module)
    if attribute and not hasattr(found, attribute):
        raise _unknown(name)
    return getattr(found, attribute) if attribute else found


def require_known_settings() -> None:
    """Check that the installed ``AsyncGRPOConfig`` has the settings that the adapter reads, in their meaning.

    Raises:
        UsageError: It has others: since TRL 1.18 one time limit and one batching mode, and ``max_staleness`` holds
            generation.
    """
    if _is_moved():
        raise _unknown("settings of AsyncGRPOConfig")


def _installed() -> str:
    return importlib.metadata.version("trl")


def _is_moved() -> bool:
    return tuple(int(number) for number in re.findall(r"\d+", _installed())[:2]) >= _MOVED


def _unknown(what: str) -> UsageError:
    return UsageError(
        f"TRL {_installed()} is installed, whose {what} harbor_gym does not know (TRL 1.18 moved and renamed "
        f"AsyncGRPO): it was run with TRL 1.16, pip install '{RUN}'"
    )


if not TYPE_CHECKING:
    __getattr__ = load
