"""Harbor tasks as reinforcement-learning environments.

Importing this package registers ``HarborTerminal-v0`` with Gymnasium, as soon as that is imported too. Every public
name is imported at its first use.
"""

from typing import TYPE_CHECKING

from harbor_gym.adapters.gymnasium.registration import register_once_imported

__version__ = "0.1.0"

if TYPE_CHECKING:
    from harbor_gym.codecs import HFCodec as HFCodec
    from harbor_gym.config import AgentEpisodeConfig as AgentEpisodeConfig
    from harbor_gym.config import EpisodeConfig as EpisodeConfig
    from harbor_gym.config import PoolLimits as PoolLimits
    from harbor_gym.config import Snapshot as Snapshot
    from harbor_gym.config import TerminalConfig as TerminalConfig
    from harbor_gym.config import TerminalEnvConfig as TerminalEnvConfig
    from harbor_gym.env import Action as Action
    from harbor_gym.env import AsyncTerminalGymEnv as AsyncTerminalGymEnv
    from harbor_gym.errors import AgentFailedError as AgentFailedError
    from harbor_gym.errors import BudgetSpentError as BudgetSpentError
    from harbor_gym.errors import ContextOverflowError as ContextOverflowError
    from harbor_gym.errors import FindingError as FindingError
    from harbor_gym.errors import ForkDivergedError as ForkDivergedError
    from harbor_gym.errors import HarborGymError as HarborGymError
    from harbor_gym.errors import MissingDependencyError as MissingDependencyError
    from harbor_gym.errors import SamplerError as SamplerError
    from harbor_gym.errors import SandboxError as SandboxError
    from harbor_gym.errors import SandboxLostError as SandboxLostError
    from harbor_gym.errors import SandboxMemoryError as SandboxMemoryError
    from harbor_gym.errors import SandboxStartError as SandboxStartError
    from harbor_gym.errors import SandboxThrottledError as SandboxThrottledError
    from harbor_gym.errors import SandboxTimeoutError as SandboxTimeoutError
    from harbor_gym.errors import TaskError as TaskError
    from harbor_gym.errors import TaskSourceError as TaskSourceError
    from harbor_gym.errors import TaskUnsupportedError as TaskUnsupportedError
    from harbor_gym.errors import TerminalError as TerminalError
    from harbor_gym.errors import TerminalStartError as TerminalStartError
    from harbor_gym.errors import UnexpectedError as UnexpectedError
    from harbor_gym.errors import UsageError as UsageError
    from harbor_gym.errors import VerifierError as VerifierError
    from harbor_gym.errors import VerifierOutOfMemoryError as VerifierOutOfMemoryError
    from harbor_gym.pool import WarmPool as WarmPool
    from harbor_gym.rollout import run_episode as run_episode
    from harbor_gym.rollout import run_with_retries as run_with_retries
    from harbor_gym.sequences import flatten as flatten
    from harbor_gym.sequences import merge as merge
    from harbor_gym.tokens import TokenTerminalEnv as TokenTerminalEnv
    from harbor_gym.types import ActionFormat as ActionFormat
    from harbor_gym.types import ChatCodec as ChatCodec
    from harbor_gym.types import ChatMessage as ChatMessage
    from harbor_gym.types import Command as Command
    from harbor_gym.types import EndInfo as EndInfo
    from harbor_gym.types import EndReason as EndReason
    from harbor_gym.types import EpisodeInfo as EpisodeInfo
    from harbor_gym.types import ResetInfo as ResetInfo
    from harbor_gym.types import Rollout as Rollout
    from harbor_gym.types import Sample as Sample
    from harbor_gym.types import SampledSpan as SampledSpan
    from harbor_gym.types import Sampler as Sampler
    from harbor_gym.types import StepResult as StepResult
    from harbor_gym.types import StopReason as StopReason
    from harbor_gym.types import TokenRole as TokenRole
    from harbor_gym.types import TokenSequence as TokenSequence
    from harbor_gym.types import TokenStep as TokenStep
    from harbor_gym.types import TokenTransition as TokenTransition
    from harbor_gym.types import Transcript as Transcript
    from harbor_gym.types import Turn as Turn
    from harbor_gym.wrappers import TerminalEnvWrapper as TerminalEnvWrapper
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".codecs": "HFCodec",
            ".config": "AgentEpisodeConfig EpisodeConfig PoolLimits Snapshot TerminalConfig TerminalEnvConfig",
            ".env": "Action AsyncTerminalGymEnv",
            ".errors": (
                "AgentFailedError BudgetSpentError ContextOverflowError FindingError ForkDivergedError HarborGymError "
                "MissingDependencyError SamplerError SandboxError SandboxLostError SandboxMemoryError "
                "SandboxStartError SandboxThrottledError SandboxTimeoutError TaskError TaskSourceError "
                "TaskUnsupportedError TerminalError TerminalStartError UnexpectedError UsageError VerifierError "
                "VerifierOutOfMemoryError"
            ),
            ".pool": "WarmPool",
            ".rollout": "run_episode run_with_retries",
            ".sequences": "flatten merge",
            ".tokens": "TokenTerminalEnv",
            ".types": (
                "ActionFormat ChatCodec ChatMessage Command EndInfo EndReason EpisodeInfo ResetInfo Rollout Sample "
                "SampledSpan Sampler StepResult StopReason TokenRole TokenSequence TokenStep TokenTransition "
                "Transcript Turn"
            ),
            ".wrappers": "TerminalEnvWrapper",
            ".": "__version__",
        },
    )


register_once_imported()
