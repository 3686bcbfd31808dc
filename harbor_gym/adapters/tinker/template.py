"""Settings of a group of episodes, in one object for the run, its dataset and each group."""

from dataclasses import dataclass

from harbor_gym._runtime.files import StrPath
from harbor_gym.adapters.tinker.shaping import TrajectoryReward
from harbor_gym.config import AnyEpisode, aliases, read_episode, require_one_conversation
from harbor_gym.wrappers import MakeEnv


@aliases.accepting(aliases.GROUP)
@dataclass(frozen=True, kw_only=True)
class GroupTemplate:
    """The settings that all groups of a dataset share. It pickles."""

    env: AnyEpisode
    """How each episode is played: in our own loop, or by an agent whose model the policy is. A dataset of many tasks
    replaces ``task_dir``."""

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

    transcripts_dir: StrPath | None = None
    """Folder for transcripts and the terminals' recordings; None writes none."""

    make_env: MakeEnv | str | None = None
    """Makes each episode's environment, also in a test set: a subclass of ``AsyncTerminalGymEnv``, a function that adds
    wrappers, or its name as ``module.path:name``. None is ``AsyncTerminalGymEnv``."""

    trajectory_reward: TrajectoryReward | str | None = None
    """Adds to each verified episode's reward, except in a test set: a :data:`.shaping.TrajectoryReward`, or a name."""

    def __post_init__(self) -> None:
        if isinstance(self.env, dict):  # an earlier name has joined it
            object.__setattr__(self, "env", read_episode(self.env, "env"))
        if self.branch is not None:
            require_one_conversation(self.env, "branch")
