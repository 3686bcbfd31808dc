"""Train a policy on Harbor tasks with TRL's GRPOTrainer.

    python recipes/trl_grpo.py --tasks tasks --env docker --model-name Qwen/Qwen3-4B --use-vllm
    python recipes/trl_grpo.py --tasks tasks --env daytona --agent terminal --group-size 8 --pool-size 8

With ``bash`` the policy calls one tool and the trainer runs the tools one by one; with ``terminal`` it writes
keystrokes, and the episodes of a batch run side by side.
"""

from pathlib import Path
from typing import Annotated

import typer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from harbor_gym.adapters.trl import HarborSpec
from harbor_gym.cli.recipes.common import one_line_errors
from harbor_gym.types import DEFAULT_SANDBOX


def main(
    tasks: Annotated[Path, typer.Option(help="A Harbor task, or a directory of tasks.")],
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, daytona, …")] = DEFAULT_SANDBOX,
    agent: Annotated[str, typer.Option(help="bash, terminal, or module.path:Class.")] = "bash",
    model_name: Annotated[str, typer.Option(help="Model on the Hub, or a directory.")] = "Qwen/Qwen3-4B",
    output_dir: Annotated[str, typer.Option(help="Checkpoints and logs.")] = "runs/trl",
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 100,
    group_size: Annotated[int, typer.Option(help="Episodes of a task that are compared.")] = 16,
    pool_size: Annotated[int | None, typer.Option(help="Sandboxes kept ready for each task.")] = None,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-6,
    max_completion_length: Annotated[
        int, typer.Option(help="Tokens: of an episode with tools, of one message with terminal.")
    ] = 8192,
    max_turns: Annotated[int, typer.Option(help="Tool calls, or messages, of an episode.")] = 30,
    use_vllm: Annotated[bool, typer.Option(help="Sample with vLLM on the same GPU.")] = False,
    use_cpu: Annotated[bool, typer.Option(help="Train on the CPU, in float32.")] = False,
) -> None:
    """Train."""
    with (
        one_line_errors("trl_grpo.py"),
        HarborSpec(tasks, agent=agent, sandbox=env, pool_size=pool_size, max_turns=max_turns) as spec,
    ):
        args = GRPOConfig(
            output_dir=output_dir,
            max_steps=steps,
            per_device_train_batch_size=group_size,
            num_generations=group_size,
            learning_rate=learning_rate,
            max_completion_length=max_completion_length,
            max_tool_calling_iterations=max_turns,
            use_vllm=use_vllm,
            vllm_mode="colocate",
            use_cpu=use_cpu,
            bf16=not use_cpu,
            logging_steps=1,
            report_to=[],
        )
        GRPOTrainer(model_name, args=args, **spec.trainer_arguments).train()


if __name__ == "__main__":
    typer.run(main)
