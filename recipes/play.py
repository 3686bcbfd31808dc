"""Play a task in your own terminal. The same as ``harbor-gym play``.

python recipes/play.py --task-dir tasks/devops_task
"""

import sys

from harbor_gym.cli.main import main

if __name__ == "__main__":
    main(["play", *sys.argv[1:]])
