"""Train once for each learning rate and seed. The same as ``harbor-gym sweep``.

python recipes/sweep.py --task-dir tasks/devops_task --learning-rates 1e-3,2e-4 --seeds 0,1,2 --backend local
"""

import sys

from harbor_gym.cli.main import main

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]])
