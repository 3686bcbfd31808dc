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
    """What all groups of a dataset have in common. It pickles."""

    env: TerminalEnvConfig
    """The task, the sandbox and the budgets of each episode. A dataset of many tasks puts each in ``task_dir``'s
    place."""

    model_name: str
    """Whose tokenizer to use: a model's name, or its directory."""

    renderer_name: str
    """A tinker-cookbook renderer."""

    max_tokens: int
    """The sampler's limit for one message, in tokens."""

    max_context_tokens: int | None = None
    """The model's context window in tokens; None checks nothing."""

    group_size: int = 8
    """Episodes in a group."""

    branch: str | None = None
    """Copy episodes at a turn, see :meth:`.branch.Branch.parse`: the group then consists of families of this size, if
    the strategy is :class:`.RetryThenMask`. None: each episode is played from its start."""

    transcripts_dir: Path | None = None
    """Where to write transcripts and, beside each, the terminal's recording; None writes none."""

    agent: "AgentConfig | str | None" = None
    """One of Harbor's agents, or ``module.path:Class``, that plays, answered by the policy; None is our own loop.
    For an agent with keyword arguments, its configuration: :func:`harbor_gym.adapters.harbor.agents.agent_of`."""

    train_segments: TrainSegments = "main"
    """Which conversations of an agent's episode are trained, see ``RolloutInterface``. Each has the episode's
    advantage."""

    make_env: MakeEnv | str | None = None
    """Makes each episode's environment: a subclass of ``AsyncTerminalGymEnv``, a function that puts wrappers around
    one, or its name as ``module.path:name``. None: ``AsyncTerminalGymEnv``. Episodes of a test set have it too."""

    trajectory_reward: TrajectoryReward | str | None = None
    """Adds to each verified episode's reward, see :data:`.shaping.TrajectoryReward`; or its name. Episodes of a test
    set count without it."""
