"""Train on Harbor tasks with Prime-RL: check first, then start ``rl``.

    python recipes/prime_rl/train.py --config recipes/prime_rl/qwen3_8b_docker.toml
    python recipes/prime_rl/train.py --config recipes/prime_rl/qwen3_8b_modal.toml --env-file .env --max-steps 20
    python recipes/prime_rl/train.py --config recipes/prime_rl/qwen3_8b_docker.toml --check

Run it with the Python of Prime-RL's environment. Further arguments are passed to ``rl`` unchanged.
"""

from harbor_gym.cli.recipes.prime_rl import app

if __name__ == "__main__":
    app()
