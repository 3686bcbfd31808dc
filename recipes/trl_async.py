"""Train a policy on Harbor tasks with TRL's AsyncGRPOTrainer: episodes run during the training, with exact tokens.

    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-4B --max-model-len 32768 \\
        --weight-transfer-config '{"backend":"nccl"}' --logprobs-mode processed_logprobs
    python recipes/trl_async.py --tasks tasks --env docker --model-name Qwen/Qwen3-4B
    python recipes/trl_async.py --tiny

``--tiny`` needs neither a GPU nor vLLM: it makes a policy and an engine for it, and trains on a CPU for some minutes.
"""

from pathlib import Path
from typing import Annotated

import typer
from transformers import AutoTokenizer

from harbor_gym.adapters.trl.layout import AsyncGRPOConfig, AsyncGRPOTrainer
from harbor_gym.cli.shared import one_line_errors
from harbor_gym.errors import UsageError
from harbor_gym.trl import HarborSpec
from harbor_gym.types import DEFAULT_SANDBOX


def main(
    tasks: Annotated[Path | None, typer.Option(help="A Harbor task, or a directory of tasks.")] = None,
    env: Annotated[str, typer.Option(help="Sandbox: local, docker, daytona, …")] = DEFAULT_SANDBOX,
    model_name: Annotated[str, typer.Option(help="Model on the Hub, or a directory.")] = "Qwen/Qwen3-4B",
    engine_url: Annotated[str, typer.Option(help="The vLLM server that serves it.")] = "http://localhost:8000",
    action_format: Annotated[str, typer.Option(help="How the policy's messages are written.")] = "bash-tool",
    output_dir: Annotated[Path, typer.Option(help="Checkpoints and logs.")] = Path("runs/trl-async"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps. [default: 100; 15 with --tiny]")] = None,
    group_size: Annotated[int, typer.Option(help="Episodes of a task that are compared.")] = 16,
    pool_size: Annotated[int | None, typer.Option(help="Sandboxes kept ready for each task.")] = None,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-6,
    max_completion_length: Annotated[int, typer.Option(help="Tokens of one message.")] = 2048,
    max_context_tokens: Annotated[
        int, typer.Option(help="Tokens of an episode: the engine's --max-model-len.")
    ] = 32768,
    max_turns: Annotated[int, typer.Option(help="Messages of an episode.")] = 30,
    max_lost_groups: Annotated[int, typer.Option(help="Lost groups in a row that end the training.")] = 4,
    tiny: Annotated[bool, typer.Option(help="A policy made on the spot, on a CPU.")] = False,
) -> None:
    """Train."""
    with one_line_errors():
        if tiny:
            from tiny_trl.runs import train_letters_async

            rewards = train_letters_async(output_dir, sandbox=env, steps=steps or 15, group_size=group_size)
            typer.echo(f"reward of each step: {' '.join(f'{reward:.2f}' for reward in rewards)}")
            return
        if tasks is None:
            raise UsageError("--tasks is missing: a Harbor task, or a directory of tasks")
        with HarborSpec(
            tasks,
            agent="terminal",
            sandbox=env,
            pool_size=pool_size,
            action_format=action_format,
            max_turns=max_turns,
            max_context_tokens=max_context_tokens,
        ) as spec:
            args = AsyncGRPOConfig(
                output_dir=str(output_dir),
                max_steps=steps or 100,
                per_device_train_batch_size=group_size,
                num_generations=group_size,
                learning_rate=learning_rate,
                max_completion_length=max_completion_length,
                vllm_server_base_url=engine_url,
                report_to=[],
            )
            tokenizer = AutoTokenizer.from_pretrained(model_name)
            AsyncGRPOTrainer(
                model_name,
                args=args,
                train_dataset=spec.train_dataset,
                processing_class=tokenizer,
                rollout_worker=spec.rollout_worker(args, tokenizer, model=model_name, max_lost_groups=max_lost_groups),
            ).train()


if __name__ == "__main__":
    typer.run(main)
