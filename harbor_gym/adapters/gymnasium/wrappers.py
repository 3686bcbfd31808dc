"""Wrappers that Gymnasium lacks: keystrokes for an environment that reads Terminus JSON, and tokens for text."""

import json
from typing import Any, Protocol, SupportsFloat, override

import gymnasium
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from harbor_gym.adapters.gymnasium.text import TerminalText
from harbor_gym.errors import UsageError
from harbor_gym.formats import parse_action
from harbor_gym.types import ActionFormat


def terminus_message(keystrokes: str, *, duration_sec: float = 1.0, task_complete: bool = False) -> str:
    """Return a terminus-json-plain message that types ``keystrokes``; if these are empty, it has no commands.

    Args:
        keystrokes: The keystrokes.
        duration_sec: Longest wait for their effect, in seconds.
        task_complete: Whether to declare the task complete.
    """
    commands = [{"keystrokes": keystrokes, "duration": duration_sec}] if keystrokes else []
    message = {"analysis": "", "plan": "", "commands": commands, "task_complete": task_complete}
    return json.dumps(message, ensure_ascii=False)


class KeystrokesToTerminus(gymnasium.ActionWrapper[Any, str, Any], RecordConstructorArgs):
    """Takes keystrokes for an environment with ``action="message"`` in terminus-json-plain.

    Use it to run scripted or random policies on a model's environment. A last line ``<task_complete/>`` declares the
    task complete, as with ``action="keystrokes"``.

    Args:
        env: The environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.ActionWrapper.__init__(self, env)
        self.action_space = TerminalText(env.get_wrapper_attr("action_space").max_length // 16)

    @override
    def action(self, action: str) -> str:
        """Return the message that types ``action``."""
        parsed = parse_action(action, format=ActionFormat.KEYSTROKES)
        if parsed.error is not None:
            raise UsageError(parsed.error)
        command = parsed.commands[0] if parsed.commands else None
        return terminus_message(
            command.keystrokes if command else "",
            duration_sec=command.duration_sec if command else 0.0,
            task_complete=parsed.task_complete,
        )


class Tokenizer(Protocol):
    """The interface of a tokenizer, as Hugging Face's have it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the text's tokens."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the tokens' text."""
        ...

    def __len__(self) -> int: ...


class TokenizedText(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Observations and actions as tokens, for environments whose observations and actions are text.

    Each observation is tokenised by itself. To train on the exact tokens of a whole conversation, see
    :mod:`harbor_gym.tokens`.

    Args:
        env: The environment.
        tokenizer: Writes and reads the tokens; special tokens are neither added nor shown.
    """

    def __init__(self, env: gymnasium.Env[str, str], tokenizer: Tokenizer) -> None:
        RecordConstructorArgs.__init__(self, tokenizer=tokenizer, _disable_deepcopy=True)
        gymnasium.Wrapper.__init__(self, env)
        if not (isinstance(env.observation_space, spaces.Text) and isinstance(env.action_space, spaces.Text)):
            raise UsageError("TokenizedText requires text on both sides: observation='text', and no action='commands'")
        self._tokenizer = tokenizer
        self.observation_space = spaces.Sequence(spaces.Discrete(len(tokenizer)))
        self.action_space = spaces.Sequence(spaces.Discrete(len(tokenizer)))

    @override
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Reset, and tokenise the observation."""
        text, info = self.env.reset(seed=seed, options=options)
        return self._encode(text), info

    @override
    def step(self, action: tuple[int, ...]) -> tuple[tuple[int, ...], SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step with the tokens' text, and tokenise the observation."""
        typed = self._tokenizer.decode([int(token) for token in action], skip_special_tokens=True)
        text, reward, terminated, truncated, info = self.env.step(typed)
        return self._encode(text), reward, terminated, truncated, info

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
