"""Read the rewards that a verifier wrote, without trust: most verifiers run the policy's programs.

Size, type and form are checked before anything is parsed, and no error quotes more than a line of what is there.

Source: Harbor's ``Verifier``, which takes one number in reward.txt, or an object of numbers in reward.json.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import cast

from harbor.verifier.verifier import RewardFileEmptyError, RewardFileNotFoundError, VerifierOutputParseError

from harbor_gym.sandboxes.archive.trees.records import MAX_REWARD_BYTES

_MAX_KEYS = 10_000
_MAX_TEXT = 100


def read_reward_text(path: Path) -> dict[str, float | int]:
    """Return the reward in a reward.txt.

    Raises:
        RewardFileNotFoundError, RewardFileEmptyError, VerifierOutputParseError: There is no usable one.
    """
    text = _read(path)
    try:
        return {"reward": _finite(float(text), path)}
    except ValueError:
        raise _unusable(path, f"it is no number: {_shown(text)}") from None


def read_reward_json(path: Path) -> dict[str, float | int]:
    """Return the rewards in a reward.json.

    Raises:
        RewardFileNotFoundError, RewardFileEmptyError, VerifierOutputParseError: There are no usable ones.
    """
    text = _read(path)
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as exc:  # digits beyond the interpreter's limit are a ValueError, too
        raise _unusable(path, f"it is no JSON that can be read ({_shown(str(exc))})") from None
    if not isinstance(found, dict):
        raise _unusable(path, f"it is no object: {_shown(text)}")
    rewards = cast("dict[str, object]", found)
    if len(rewards) > _MAX_KEYS:
        raise _unusable(path, f"it has {len(rewards)} keys, more than {_MAX_KEYS}")
    return {_name(key, path): _finite(value, path) for key, value in rewards.items()}


def _read(path: Path) -> str:
    """Return the text of a reward file."""
    name = path.name
    try:
        folder = path.parent.resolve()
        real = path.resolve(strict=True)
        if not real.is_relative_to(folder):
            raise _unusable(path, "it is a link that leads out of its directory")
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise RewardFileNotFoundError(f"there is no {name} in the verifier's directory") from None
    except (OSError, RuntimeError) as exc:  # a loop of links is a RuntimeError in older interpreters
        raise _unusable(path, f"it can't be opened ({_shown(str(exc))})") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(path, "it is no ordinary file")
        if status.st_size == 0:
            raise RewardFileEmptyError(f"{name} is empty")
        content = os.read(handle, MAX_REWARD_BYTES + 1)
    finally:
        os.close(handle)
    if len(content) > MAX_REWARD_BYTES:
        raise _unusable(path, f"it is larger than {MAX_REWARD_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _unusable(path, f"it is no UTF-8: {_shown(content[:_MAX_TEXT].decode(errors='replace'))}") from None


def _finite(value: object, path: Path) -> float | int:
    if not isinstance(value, int | float):
        raise _unusable(path, f"a value is no number: {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise _unusable(path, "a value is an integer beyond the range of numbers") from None
    if not math.isfinite(number):
        raise _unusable(path, f"a value is not finite: {number}")
    return value


def _name(key: str, path: Path) -> str:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise _unusable(path, f"a key is no Unicode: {_shown(key)}") from None
    return key


def _unusable(path: Path, why: str) -> VerifierOutputParseError:
    return VerifierOutputParseError(f"{path.name} is no verdict: {why}")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else type(value).__name__
    return repr(text[:_MAX_TEXT]) + ("…" if len(text) > _MAX_TEXT else "")
