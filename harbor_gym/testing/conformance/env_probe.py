"""Environments for the checks of ``check_env``, and the helper functions of those checks."""

import contextlib
import math
import types
import typing
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from harbor_gym._runtime.files import StrPath
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.testing.conformance.behaviours import expect
from harbor_gym.types import ActionFormat, EndInfo, EpisodeInfo, ResetInfo

FAKE_SANDBOX = "harbor_gym.testing:FakeEnvironment"


class GymEnv(Protocol):
    """The checked methods of an environment: Gymnasium's, asynchronous."""

    async def reset(self) -> tuple[str, ResetInfo]:
        """Start an episode."""
        ...

    async def step(self, action: Any, /) -> tuple[str, float, bool, EpisodeInfo]:
        """Take one action."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


type MakeEnv = Callable[[TerminalEnvConfig], GymEnv]
type Step = tuple[str, float, bool, EpisodeInfo]


class EnvProbe:
    """Makes environments for behaviours, each with the settings it needs."""

    def __init__(self, make_env: MakeEnv, config: TerminalEnvConfig | None, directory: Path) -> None:
        self._make_env = make_env
        self._config = config or TerminalEnvConfig(task_dir=write_tiny_task(directory / "task"), sandbox=FAKE_SANDBOX)

    def make(self, **settings: Any) -> GymEnv:
        """Make an environment of the configuration, with ``settings`` in place of its own."""
        calm = {"action_format": ActionFormat.KEYSTROKES, "max_turns": None, "time_limit_sec": None}
        return self._make_env(self._config.model_copy(update={**calm, **settings}))

    def make_failing(self, **fail: int) -> GymEnv:
        """Make an environment with a fake sandbox that fails at the given point."""
        return self.make(sandbox=FAKE_SANDBOX, sandbox_options={"fail": fail})

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncGenerator[GymEnv]:
        """Make an environment, reset it, and close it at the end."""
        env = self.make(**settings)
        try:
            await env.reset()
            yield env
        finally:
            await env.close()


def write_tiny_task(task_dir: StrPath) -> Path:
    """Write the smallest task that Harbor accepts, and return its folder."""
    task_dir = Path(task_dir)
    for name, text in {
        "task.toml": 'schema_version = "1.4"\n[task]\nname = "harbor-gym/tiny"\n',
        "instruction.md": "Do as you like.\n",
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    }.items():
        path = task_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return task_dir


def check_text(text: object, what: str) -> None:
    """Expect text without control characters."""
    expect(isinstance(text, str), f"{what} is a {type(text).__name__} and no text")
    odd = {char for char in cast("str", text) if not char.isprintable() and char not in "\n\t\u00ad"}
    odd = {char for char in odd if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000}
    expect(not odd, f"{what} has control characters or lone surrogates in it: {sorted(map(hex, map(ord, odd)))}")


def check_info(info: Mapping[str, Any], *required: str) -> None:
    """Check types against :class:`EpisodeInfo`, and that ``info`` has its required keys and those of ``required``."""
    hints = typing.get_type_hints(EpisodeInfo, include_extras=False)
    for key, value in info.items():
        if key in hints:
            expect(_fits(value, hints[key]), f"info[{key!r}] should be {hints[key]}, found {value!r}")
    missing = sorted((EpisodeInfo.__required_keys__ | set(required)) - set(info))
    expect(not missing, f"info lacks {', '.join(missing)}")


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, item) for item in arguments)
    if origin is dict:
        pairs = cast("dict[object, object]", value).items() if isinstance(value, dict) else None
        return pairs is not None and all(_fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in pairs)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in cast("tuple[object, ...]", value))
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, type(None) if hint is None else hint)


def check_step(step: Step) -> Step:
    """Check the types of a result of ``step``, and return it."""
    observation, reward, done, info = step
    check_text(observation, "the observation")
    for value, kind, name in ((reward, float, "the reward"), (done, bool, "done")):
        expect(isinstance(value, kind), f"{name} is a {type(value).__name__}")
    expect(math.isfinite(reward), f"the reward is {reward}")
    check_info(info)
    return step


def check_done(step: Step) -> EndInfo:
    """Check the end of an episode, and return its ``info``."""
    *_, done, info = check_step(step)
    expect(done, "the episode should be over")
    check_info(info, *EndInfo.__required_keys__)
    return cast("EndInfo", info)
