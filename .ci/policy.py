"""Make the policy that is shipped for a task: its demonstrations, the warm start, and the packed policy of the package.

.venv/bin/python .ci/policy.py tasks/devops_task            # minutes
.venv/bin/python .ci/policy.py tasks/devops_task FOLDER     # packs a policy of this task that is there
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path

from harbor_gym.embedded import ensure_policy
from harbor_gym.embedded.shipped import KEY_NAME, POLICIES, SEED, copy_policy, policy_fingerprint
from harbor_gym.embedded.warm_start import RECORD_NAME

RENDERER = "qwen3_instruct"


def main(task: str, made: str | None = None) -> None:
    """Make the policy, unless ``made`` names it, and pack it."""
    task_dir = Path(task)
    policy = Path(made) if made is not None else asyncio.run(make(task_dir))
    print(pack_policy(policy, task_dir))


async def make(task_dir: Path) -> Path:
    """Play the demonstrations and learn from them."""
    return await ensure_policy(
        task_dir, sandbox="local", renderer_name=RENDERER, seed=SEED, rebuild=True, progress=show_progress
    )


def pack_policy(policy: Path, task_dir: Path) -> Path:
    """Make a policy the shipped one of a task, in place of an older one; return its folder, named as the task's."""
    settings = json.loads((policy / RECORD_NAME).read_text(encoding="utf-8"))["settings"]
    if settings["seed"] != SEED:
        sys.exit(f"{policy} was made with seed {settings['seed']}; a shipped policy has seed {SEED}")
    final = POLICIES / task_dir.resolve().name
    shutil.rmtree(final, ignore_errors=True)
    copy_policy(policy, final, "bfloat16")
    (final / KEY_NAME).write_text(f"{policy_fingerprint(task_dir, settings['renderer_name'])}\n", encoding="utf-8")
    return final


def show_progress(phase: str, done: int, total: int, loss: float | None) -> None:
    """Print a line for every tenth of a phase."""
    if done % max(1, total // 10) == 0:
        print(f"{phase} {done}/{total}" + (f"  loss {loss:.2f}" if loss is not None else ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
