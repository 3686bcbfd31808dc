"""An engine and a configuration for SkyRL's generators and trainers, without a GPU, and what tests use of SkyRL itself.

A name is imported when it is first used: SkyRL takes seconds to import.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        compute_grpo_outcome_advantage as compute_grpo_outcome_advantage,
    )
    from skyrl.backends.skyrl_train.utils.ppo_utils import compute_maxrl_advantage as compute_maxrl_advantage
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        compute_rloo_outcome_advantage as compute_rloo_outcome_advantage,
    )
    from skyrl.train.config import SamplingParams as SamplingParams
    from skyrl.train.dataset import PromptDataset as PromptDataset
    from skyrl.train.dataset.preprocess import (
        compute_prompt_mini_batch_boundaries as compute_prompt_mini_batch_boundaries,
    )
    from skyrl.train.generators.base import TrajectoryID as TrajectoryID
    from skyrl.train.generators.utils import merge_stepwise_output as merge_stepwise_output
    from skyrl.train.utils.trainer_utils import validate_generator_output as validate_generator_output

    from tests.helpers.skyrl.batches import generator_config as generator_config
    from tests.helpers.skyrl.batches import make_generator as make_generator
    from tests.helpers.skyrl.batches import make_input as make_input
    from tests.helpers.skyrl.engine import SamplerEngine as SamplerEngine
    from tests.helpers.skyrl.engine import chat_tokenizer as chat_tokenizer
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "skyrl.backends.skyrl_train.utils.ppo_utils": (
                "compute_grpo_outcome_advantage compute_maxrl_advantage compute_rloo_outcome_advantage"
            ),
            "skyrl.train.config": "SamplingParams",
            "skyrl.train.dataset": "PromptDataset",
            "skyrl.train.dataset.preprocess": "compute_prompt_mini_batch_boundaries",
            "skyrl.train.generators.base": "TrajectoryID",
            "skyrl.train.generators.utils": "merge_stepwise_output",
            "skyrl.train.utils.trainer_utils": "validate_generator_output",
            ".batches": "generator_config make_generator make_input",
            ".engine": "SamplerEngine chat_tokenizer",
        },
    )
