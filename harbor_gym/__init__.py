"""Harbor tasks as reinforcement-learning environments.

Importing this package registers ``HarborTerminal-v0`` with Gymnasium. Whatever else a name needs is imported when the
name is first used.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names
from harbor_gym.adapters.gymnasium.registration import register

__version__ = "0.1.0"

if TYPE_CHECKING:
    from harbor_gym.codecs import HFCodec
    from harbor_gym.config import PoolLimits, TerminalConfig, TerminalEnvConfig
    from harbor_gym.env import AsyncTerminalGymEnv
    from harbor_gym.errors import (
        AgentFailedError,
        BudgetSpentError,
        ContextOverflowError,
        HarborGymError,
        MissingDependencyError,
        SamplerError,
        SandboxError,
        SandboxLostError,
        SandboxMemoryError,
        SandboxStartError,
        SandboxThrottledError,
        SandboxTimeoutError,
        TaskError,
        TaskSourceError,
        TaskUnsupportedError,
        TerminalError,
        TerminalStartError,
        UsageError,
        VerifierError,
        VerifierOutOfMemoryError,
    )
    from harbor_gym.pool import WarmPool
    from harbor_gym.rollout import run_episode, run_with_retries
    from harbor_gym.sequences import flatten, merge
    from harbor_gym.tokens import TokenTerminalEnv, Transcript
    from harbor_gym.types import (
        ActionFormat,
        ChatCodec,
        ChatMessage,
        Command,
        EndReason,
        EpisodeInfo,
        Rollout,
        Sample,
        Sampler,
        StepResult,
        StopReason,
        TokenSequence,
        TokenStep,
        TokenTransition,
        Turn,
    )
    from harbor_gym.wrappers import TerminalEnvWrapper

__all__ = [
    "ActionFormat",
    "AgentFailedError",
    "AsyncTerminalGymEnv",
    "BudgetSpentError",
    "ChatCodec",
    "ChatMessage",
    "Command",
    "ContextOverflowError",
    "EndReason",
    "EpisodeInfo",
    "HFCodec",
    "HarborGymError",
    "MissingDependencyError",
    "PoolLimits",
    "Rollout",
    "Sample",
    "Sampler",
    "SamplerError",
    "SandboxError",
    "SandboxLostError",
    "SandboxMemoryError",
    "SandboxStartError",
    "SandboxThrottledError",
    "SandboxTimeoutError",
    "StepResult",
    "StopReason",
    "TaskError",
    "TaskSourceError",
    "TaskUnsupportedError",
    "TerminalConfig",
    "TerminalEnvConfig",
    "TerminalEnvWrapper",
    "TerminalError",
    "TerminalStartError",
    "TokenSequence",
    "TokenStep",
    "TokenTerminalEnv",
    "TokenTransition",
    "Transcript",
    "Turn",
    "UsageError",
    "VerifierError",
    "VerifierOutOfMemoryError",
    "WarmPool",
    "__version__",
    "flatten",
    "merge",
    "run_episode",
    "run_with_retries",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "codecs": ("HFCodec",),
        "config": ("PoolLimits", "TerminalConfig", "TerminalEnvConfig"),
        "env": ("AsyncTerminalGymEnv",),
        "errors": (
            "AgentFailedError",
            "BudgetSpentError",
            "ContextOverflowError",
            "HarborGymError",
            "MissingDependencyError",
            "SamplerError",
            "SandboxError",
            "SandboxLostError",
            "SandboxMemoryError",
            "SandboxStartError",
            "SandboxThrottledError",
            "SandboxTimeoutError",
            "TaskError",
            "TaskSourceError",
            "TaskUnsupportedError",
            "TerminalError",
            "TerminalStartError",
            "UsageError",
            "VerifierError",
            "VerifierOutOfMemoryError",
        ),
        "pool": ("WarmPool",),
        "rollout": ("run_episode", "run_with_retries"),
        "sequences": ("flatten", "merge"),
        "tokens": ("TokenTerminalEnv", "Transcript"),
        "types": (
            "ActionFormat",
            "ChatCodec",
            "ChatMessage",
            "Command",
            "EndReason",
            "EpisodeInfo",
            "Rollout",
            "Sample",
            "Sampler",
            "StepResult",
            "StopReason",
            "TokenSequence",
            "TokenStep",
            "TokenTransition",
            "Turn",
        ),
        "wrappers": ("TerminalEnvWrapper",),
    },
)


register()
