"""Settings of a group of episodes, in one object for the run, its dataset and each group."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.adapters.tinker.shaping import TrajectoryReward
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.types import TrainSegments
from harbor_gym.wrappers import MakeEnv

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig


@dataclass(frozen=True, kw_only=True)
class GroupTemplate:
    """The settings that all groups of a dataset share. It pickles."""

    env: TerminalEnvConfig
    """The task, the sandbox and the budgets of each episode. A dataset of many tasks replaces ``task_dir``."""

    model_name: str
    """The model whose tokenizer is used: a name, or a directory."""

    renderer_name: str
    """A tinker-cookbook renderer."""

    max_tokens: int
    """The sampler's limit for one message, in tokens."""

    max_context_tokens: int | None = None
    """The model's context window in tokens; None sets no limit."""

    group_size: int = 8
    """Episodes in a group."""

    branch: str | None = None
    """Copy episodes at a turn, see :meth:`.branch.Branch.parse`. With the strategy :class:`.RetryThenMask` the group
    then consists of families. None plays each episode from its start."""

    transcripts_dir: Path | None = None
    """Folder for transcripts and the terminals' recordings; None writes none."""

    agent: "AgentConfig | str | None" = None
    """The Harbor agent that plays, with the policy as its model: a name, ``module.path:Class``, or, with keyword
    arguments, the result of :func:`harbor_gym.adapters.harbor.agents.agent_of`. None is this package's own loop."""

    train_segments: TrainSegments = "main"
    """The conversations of an agent's episode that are trained on, see ``RolloutInterface``. Each has the episode's
    advantage."""

    make_env: MakeEnv | str | None = None
    """Makes each episode's environment, also in a test set: a subclass of ``AsyncTerminalGymEnv``, a function that adds
    wrappers, or its name as ``module.path:name``. None is ``AsyncTerminalGymEnv``."""

    trajectory_reward: TrajectoryReward | str | None = None
    """Adds to each verified episode's reward, except in a test set: a :data:`.shaping.TrajectoryReward`, or a name."""
