"""Play a group in slow sandboxes on a Ray cluster of this process, until a signal ends it: argument FOLDER."""

import sys
from pathlib import Path

from harbor_gym.cluster import ClusterLimits
from harbor_gym.cluster.session import connect
from tests.helpers.cluster.groups import play_group
from tests.helpers.sandboxes.fake_episodes import fake_config


def main(folder: Path) -> None:
    config = fake_config(folder / "task", delay_sec=300.0)
    with connect(ClusterLimits(max_workers=1, sandboxes_per_worker=4)) as pool:
        future = pool.submit(play_group, config, "group_0", folder / "run", 4)
        try:
            future.result()
        finally:
            sys.stdout.write(f"{type(sys.exc_info()[1]).__name__}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
