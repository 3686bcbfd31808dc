r"""Train a policy on Harbor tasks with SkyRL. Needs GPUs, and vLLM for the engine.

    python recipes/skyrl_grpo.py 'harbor.tasks=["tasks"]' harbor.env.sandbox=docker \
        trainer.policy.model.path=Qwen/Qwen3-4B
    python recipes/skyrl_grpo.py 'harbor.tasks=["tasks"]' harbor.env.agent=terminus-2 trainer.fully_async.enabled=true

Every field of SkyRL's configuration is a flag, ``key.path=value``, and so are those of the section ``harbor``
(``harbor_gym.skyrl.HarborSettings``). The list below has the differences from SkyRL's defaults.
"""

import sys

from harbor_gym.cli.shared import one_line_errors

DEFAULTS = (
    # One row per message, merged again into one per episode: a lost episode is left out exactly.
    "generator.step_wise_trajectories=true",
    "generator.merge_stepwise_output=true",
    "generator.max_turns=30",
    "generator.max_input_length=24576",
    "generator.sampling_params.max_generate_length=2048",
    "generator.n_samples_per_prompt=8",
    "trainer.max_prompt_length=4096",
    "trainer.train_batch_size=16",
    "trainer.policy_mini_batch_size=16",
    "trainer.algorithm.advantage_estimator=grpo",
    "trainer.epochs=20",
    "trainer.logger=console",
)

if __name__ == "__main__":
    with one_line_errors():
        from harbor_gym.skyrl import main

        main([*DEFAULTS, *sys.argv[1:]])
