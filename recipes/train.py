"""Train a policy on Harbor tasks, one or many, with tinker-cookbook's RL loop: ``harbor-gym train`` with your defaults.

The same loop runs against the Tinker service (``--backend tinker``) and against the embedded server on this machine
(``--backend local``); only the address differs.

    python recipes/train.py --task-dir tasks/devops_task --env daytona --model-name Qwen/Qwen3-30B-A3B-Instruct-2507 \
        --renderer-name qwen3 --max-tokens 4096 --temperature 0.7 --groups-per-batch 1 --group-size 8 \
        --num-batches 25 --learning-rate 4e-5 --lora-rank 32 --save-every 10 --log-path ./runs/x

    python recipes/train.py --task-dir tasks --where difficulty=easy --test-fraction 0.25 --eval-every 5 \
        --groups-per-batch 4 --epochs 3 --env docker
"""

from harbor_gym.adapters.tinker.training import TrainConfig
from harbor_gym.cli.exits import run_and_exit
from harbor_gym.cli.recipes.train import train_app


class Config(TrainConfig):
    """The run; each field is a flag. Give a field here to change its default: ``group_size: int = 16``."""


app = train_app(Config, program="train.py")

if __name__ == "__main__":
    run_and_exit(app)
