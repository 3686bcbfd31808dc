"""Evaluate a policy on tasks: pass@k and mean reward with intervals. The same as ``harbor-gym eval``.

python recipes/eval.py tasks --run runs/x --env local --episodes 16        # the run's last checkpoint
python recipes/eval.py tasks/devops_task --run runs/x --checkpoint best     # of those that --eval-every evaluated
python recipes/eval.py tasks --model NAME --base-url https://… --api-key-env KEY --agent terminus-2 --output out
"""

import sys

from harbor_gym.cli.main import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]])
