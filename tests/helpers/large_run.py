"""A run as large as a long training leaves it: thousands of transcripts with recordings, and hundreds of batches."""

import json
import random
from pathlib import Path
from typing import Any

GROUP = 16
GROUPS = 4
TASKS = 40
TURNS = 12
METRICS = 60


def write_large_run(folder: Path, *, episodes: int) -> Path:
    """Write a training run of so many episodes into a folder, and return the folder."""
    draw = random.Random(0)
    observation = "\n".join(f"{number:06d} drwxr-xr-x root root a line of a directory" for number in range(24))
    action = json.dumps({"analysis": "a" * 400, "plan": "p" * 200, "commands": [{"keystrokes": "ls\n", "duration": 1}]})
    turn: dict[str, Any] = {"observation": observation, "action": action, "reward": 0.0, "prompt_tokens": 900}
    turn |= {"sampled_tokens": 150, "logprobs": [-0.1234] * 150, "thinking_sec": 0.5, "metrics": {"time/step_sec": 0.1}}
    turns, cast = json.dumps([turn] * TURNS), _cast(observation)
    for number in range(episodes):
        group, episode = divmod(number, GROUP)
        batch, group = divmod(group, GROUPS)
        reward = float(draw.random() < batch / (episodes / GROUP / GROUPS))
        place = folder / f"transcripts/train/batch_{batch + 1:04d}/group_{group}/episode_{episode:03d}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        head = {
            "format": 2,
            "task": f"task_{(batch * GROUPS + group) % TASKS:03d}",
            "end_reason": draw.choice(("completed", "completed", "max_turns")),
            "reward": reward,
            "verifier": {"output": f"FAILED test_{draw.randrange(9)}\n1 failed in {draw.random():.2f}s\n", "files": {}},
            "seconds": 60 * draw.random(),
            "final_observation": "$ ",
        }
        place.write_text(f'{json.dumps(head)[:-1]}, "turns": {turns}}}', encoding="utf-8")
        place.with_suffix(".cast").write_text(cast, encoding="utf-8")
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(-(-episodes // GROUP // GROUPS)):
            more = {f"optim/metric_{number:02d}": draw.random() for number in range(METRICS)}
            file.write(json.dumps({"step": step, "env/all/reward/total": draw.random(), **more}) + "\n")
    return folder


def _cast(text: str) -> str:
    shown = text.replace("\n", "\r\n")
    events = [line for turn in range(TURNS) for line in ([turn, "m", f"turn {turn}"], [turn, "o", shown])]
    return "\n".join(map(json.dumps, [{"version": 2, "width": 80, "height": 24}, *events])) + "\n"
