"""Harbor tasks as reinforcement-learning environments.

Importing this package costs little: what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harbor_gym.adapters.gymnasium.registration import register_when_imported

__version__ = "0.1.0"

if TYPE_CHECKING:
    from harbor_gym.codecs import HFCodec
    from harbor_gym.config import PoolLimits, TerminalConfig, TerminalEnvConfig
    from harbor_gym.env import AsyncTerminalGymEnv
    from harbor_gym.errors import (
        AgentFailedError,
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

_HOMES = {
    "AgentFailedError": "harbor_gym.errors",
    "ActionFormat": "harbor_gym.types",
    "AsyncTerminalGymEnv": "harbor_gym.env",
    "ChatCodec": "harbor_gym.types",
    "ChatMessage": "harbor_gym.types",
    "Command": "harbor_gym.types",
    "EndReason": "harbor_gym.types",
    "EpisodeInfo": "harbor_gym.types",
    "HFCodec": "harbor_gym.codecs",
    "HarborGymError": "harbor_gym.errors",
    "MissingDependencyError": "harbor_gym.errors",
    "PoolLimits": "harbor_gym.config",
    "Rollout": "harbor_gym.types",
    "Sample": "harbor_gym.types",
    "SamplerError": "harbor_gym.errors",
    "Sampler": "harbor_gym.types",
    "SandboxError": "harbor_gym.errors",
    "SandboxLostError": "harbor_gym.errors",
    "SandboxMemoryError": "harbor_gym.errors",
    "SandboxStartError": "harbor_gym.errors",
    "SandboxThrottledError": "harbor_gym.errors",
    "SandboxTimeoutError": "harbor_gym.errors",
    "StepResult": "harbor_gym.types",
    "StopReason": "harbor_gym.types",
    "TaskError": "harbor_gym.errors",
    "TaskSourceError": "harbor_gym.errors",
    "TerminalConfig": "harbor_gym.config",
    "TerminalEnvConfig": "harbor_gym.config",
    "TerminalEnvWrapper": "harbor_gym.wrappers",
    "TerminalError": "harbor_gym.errors",
    "TerminalStartError": "harbor_gym.errors",
    "TokenSequence": "harbor_gym.types",
    "TokenStep": "harbor_gym.types",
    "TokenTerminalEnv": "harbor_gym.tokens",
    "TokenTransition": "harbor_gym.types",
    "Transcript": "harbor_gym.tokens",
    "Turn": "harbor_gym.types",
    "UsageError": "harbor_gym.errors",
    "VerifierError": "harbor_gym.errors",
    "VerifierOutOfMemoryError": "harbor_gym.errors",
    "WarmPool": "harbor_gym.pool",
    "flatten": "harbor_gym.sequences",
    "merge": "harbor_gym.sequences",
    "run_episode": "harbor_gym.rollout",
    "run_with_retries": "harbor_gym.rollout",
}

__all__ = [
    "ActionFormat",
    "AgentFailedError",
    "AsyncTerminalGymEnv",
    "ChatCodec",
    "ChatMessage",
    "Command",
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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


register_when_imported()
