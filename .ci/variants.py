"""Make variants of devops_task that differ in names, which no policy was trained on; what it reads there solves them.

.venv/bin/python .ci/variants.py runs/variants 1 2 3    # a directory for each seed
"""

import hashlib
import random
import re
import shutil
import sys
from pathlib import Path

TASK = Path(__file__).resolve().parents[1] / "tasks/devops_task"
_CHECKED = {"APPCTL": "environment/app/appctl", "SERVE": "environment/app/serve", "KEY": "environment/app/key"}
"""The checksums of the verifier → their files."""


def make_variant(folder: Path, seed: int) -> Path:
    """Make the variant of a seed, and return its directory: the service's name, the requests and the key are others.

    The faults are the same, and so is the way to find and to repair each.

    Args:
        folder: A directory for it.
        seed: Decides the names.
    """
    draw = random.Random(seed)
    name = "".join(draw.choice(letters) for letters in ("bdfgklmnprtvz", "aeiou", "bdfgklmnprtvz", "aeiou"))
    numbers = draw.sample(range(2000, 10000), 2)
    target = folder / f"devops_task_{name}"
    shutil.copytree(TASK, target)
    for path in sorted(target.rglob("*"), reverse=True):
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if path.name == "key":
            text = f"{draw.getrandbits(64):016x}\n"
        path.write_text(_renamed(text, name, numbers), encoding="utf-8")  # write_text keeps the mode
        path.rename(path.with_name(_renamed(path.name, name, numbers)))
    (target / "environment/app").rename(target / f"environment/{name}")
    verifier = target / "tests/test.sh"
    text = verifier.read_text(encoding="utf-8")
    for variable, file in _CHECKED.items():
        content = (target / _renamed(file, name, numbers)).read_bytes()
        text = re.sub(rf"{variable}_SHA256=\w+", f"{variable}_SHA256={hashlib.sha256(content).hexdigest()}", text)
    verifier.write_text(text, encoding="utf-8")
    return target


def _renamed(text: str, name: str, numbers: list[int]) -> str:
    """Replace the service's name, what is left of it in the settings' fault, and the requests' numbers."""
    text = re.sub(r"\bapp(ctl)?\b", rf"{name}\1", text)
    text = re.sub(r"\bap\b", name[:-1], text)
    for before, after in zip(("1041", "1042"), numbers, strict=True):
        text = text.replace(before, str(after))
    return text


if __name__ == "__main__":
    for number in sys.argv[2:]:
        print(make_variant(Path(sys.argv[1]), int(number)))
