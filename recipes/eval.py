"""Evaluate a checkpoint or a base model on tasks: pass@k and mean reward with intervals, as a table and as JSON.

    python recipes/eval.py tasks --run runs/x --env local --episodes 16        # the run's last checkpoint
    python recipes/eval.py tasks/devops_task --run runs/x --checkpoint 000010
    python recipes/eval.py tasks/devops_task --run runs/x --checkpoint best     # of those that --eval-every evaluated
    python recipes/eval.py tasks --model-name Qwen/Qwen3-30B-A3B-Instruct-2507 --renderer-name qwen3_instruct
    python recipes/eval.py tasks --model NAME --base-url https://… --api-key-env KEY --agent terminus-2 --output out

A model that is a directory, as the embedded backend's are, is served here; a run's checkpoints with it.
"""

from exits import run_and_exit

from harbor_gym.cli.recipes.evaluate import eval_app

app = eval_app(program="eval.py")

if __name__ == "__main__":
    run_and_exit(app)
