"""Play a task whose phases have different allowlists, as an episode and as Harbor's own trial, on another internet.

As a program, by ``python -m tests.helpers.internet``, it prints both verdicts as JSON.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.helpers.harbor_trials import graded_in, rewards_of, run_episode, run_trial
from tests.helpers.tasks import write_task

_TOML = """
[environment]
network_mode = "allowlist"
allowed_hosts = ["site.test"]
[agent]
network_mode = "allowlist"
allowed_hosts = ["*.test"]
"""
_LOOK = """
for site in site evil; do
  python3 -c "import urllib.request; urllib.request.urlopen('http://$site.test/', timeout=20)" 2>/dev/null && echo $site
done > /srv/{who}
"""
_COUNTS = ", ".join(f'"{who} {site}": $(grep -c {site} /srv/{who})' for who in ("policy", "verifier")
                    for site in ("site", "evil"))  # fmt: skip
_TEST = f"""#!/bin/bash
{_LOOK.format(who="verifier")}
cat > /logs/verifier/reward.json <<END
{{{_COUNTS}}}
END
"""


async def main(folder: Path) -> list[list[dict[str, float]]]:
    """Return the rewards of both."""
    task_dir = write_task(folder / "task", toml=_TOML, test_sh=_TEST)
    scripts = [_LOOK.format(who="policy")]
    trial = await run_trial(task_dir, scripts, sandbox="local", trials_dir=folder / "trials")
    ends, _ = await run_episode(task_dir, scripts, sandbox="local", reward_function="sum")
    return [rewards_of(trial), graded_in(ends)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        json.dump(asyncio.run(main(Path(folder))), sys.stdout)
