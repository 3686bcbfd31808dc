"""Draw curves of runs by learning rate. The same as ``harbor-gym plot``.

python recipes/plot.py runs/sweep
python recipes/plot.py runs/a runs/b/metrics.jsonl --output compared.png --turns-key env/all/total_turns
"""

import sys

from harbor_gym.cli.main import main

if __name__ == "__main__":
    main(["plot", *sys.argv[1:]])
