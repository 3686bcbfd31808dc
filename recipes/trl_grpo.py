"""Train a policy on Harbor tasks with TRL's GRPOTrainer.

    python recipes/trl_grpo.py --tasks tasks --env docker --model-name Qwen/Qwen3-4B --use-vllm
    python recipes/trl_grpo.py --tasks tasks --env daytona --agent terminal --group-size 8 --pool-size 8
    python recipes/trl_grpo.py --tiny

With ``bash`` the policy calls a tool, and the trainer runs the calls one by one; with ``terminal`` it writes
keystrokes, and the episodes of a batch run concurrently. ``--tiny`` needs no GPU: it makes a policy and trains it for
some minutes on a CPU, on a task that requires one of four letters.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from harbor_gym.cli.shared import one_line_errors
from harbor_gym.errors import UsageError
from harbor_gym.trl import HarborSpec
from harbor_gym.types import DEFAULT_SANDBOX, ActionFormat


def main(
    tasks: Annotated[Path | None, typer.Option(help="A Harbor task, or a directory of tasks.")] = None,
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, daytona, …")] = DEFAULT_SANDBOX,
    agent: Annotated[str, typer.Option(help="bash, terminal, terminal_notes, jupyter, or module.path:Class.")] = "bash",
    action_format: Annotated[
        ActionFormat, typer.Option(help="How messages are written, with terminal.")
    ] = ActionFormat.TERMINUS_JSON,
    model_name: Annotated[str, typer.Option(help="Model on the Hub, or a directory.")] = "Qwen/Qwen3-4B",
    output_dir: Annotated[Path, typer.Option(help="Checkpoints and logs.")] = Path("runs/trl"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps. [default: 100; 15 with --tiny]")] = None,
    group_size: Annotated[int, typer.Option(help="Episodes of a task that are compared.")] = 16,
    pool_size: Annotated[int | None, typer.Option(help="Sandboxes kept ready for each task.")] = None,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-6,
    max_completion_length: Annotated[
        int, typer.Option(help="Tokens: of an episode with tools, of one message with terminal.")
    ] = 8192,
    max_turns: Annotated[int, typer.Option(help="Tool calls, or messages, of an episode.")] = 30,
    use_vllm: Annotated[bool, typer.Option(help="Sample with vLLM on the same GPU.")] = False,
    use_cpu: Annotated[bool, typer.Option(help="Train on the CPU, in float32.")] = False,
    tiny: Annotated[bool, typer.Option(help="A policy made on the spot, on a CPU: bash or terminal.")] = False,
) -> None:
    """Train."""
    with one_line_errors():
        if tiny:
            from tiny_trl.runs import train_letters

            rewards = train_letters(
                output_dir,
                agent=agent,
                sandbox=env,
                steps=steps or 15,
                group_size=group_size,
                pool_size=pool_size,
            )
            typer.echo(f"reward of each step: {' '.join(f'{reward:.2f}' for reward in rewards)}")
            return
        if tasks is None:
            raise UsageError("--tasks is missing: a Harbor task, or a directory of tasks")
        format_of_terminal: dict[str, Any] = {"action_format": action_format} if agent == "terminal" else {}
        with HarborSpec(
            tasks, agent=agent, sandbox=env, pool_size=pool_size, max_turns=max_turns, **format_of_terminal
        ) as spec:
            args = GRPOConfig(
                output_dir=str(output_dir),
                max_steps=steps or 100,
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
