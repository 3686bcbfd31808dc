"""A cookbook renderer as the token environment's chat codec."""

import json
import logging
import threading
from collections.abc import Sequence
from typing import cast

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Message, Renderer, ToolCall
from tinker_cookbook.renderers.base import get_text_content

from harbor_gym.errors import UsageError
from harbor_gym.tokens import ChatMessage

logger = logging.getLogger(__name__)

# Two answers that share no token: what their renderings have in common after them does not come from the answer.
_PROBE_ANSWERS = ("0", "z")
_PROBE_MESSAGES = ("next", "another one")


# A Hugging Face tokenizer switches its reading of special tokens per call and shares that switch among threads: two
# renderings at once can write <|im_end|> as plain text. The cookbook hands out one tokenizer per model, so one lock.
_rendering = threading.Lock()


class RendererCodec:
    """Write a chat as tokens with a tinker-cookbook renderer, extending the prompt and never rendering it again.

    Only public methods of the renderer are used: what follows an answer is found once, by rendering two
    conversations that differ in the answer alone, and taking what their renderings have in common behind it.

    Args:
        renderer: Any cookbook renderer for text.

    Raises:
        UsageError: The renderer writes an earlier answer in a way that can't be continued token by token.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.stop: list[str] | list[int] = renderer.get_stop_sequences()
        with _rendering:
            self._tokens_before_tail = self._find_tail()
        self.off_template = not renderer.has_extension_property
        """Whether the model's own chat template would drop earlier thinking that stays in our prompts."""
        if self.off_template:
            logger.warning(
                "renderer %s drops earlier thinking from a chat's history; here what was sampled stays in the prompt, "
                "so that each observation extends the last one",
                type(renderer).__name__,
            )

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens that precede the model's first answer."""
        with _rendering:
            chat = [_message(m["role"], m["content"]) for m in messages]
            return self.renderer.build_generation_prompt(chat).to_ints()

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        """Return the tokens between ``sampled`` and the next answer."""
        with _rendering:
            tail = self._render(_PROBE_ANSWERS[0], message)[self._tokens_before_tail :]
            for stop in self.stop:
                stop_tokens = [stop] if isinstance(stop, int) else self._encode(stop)
                rest = self._after_stop(tail, stop)
                if rest is not None and list(sampled[-len(stop_tokens) :]) == stop_tokens:
                    return rest
        return tail

    def text(self, sampled: Sequence[int]) -> str:
        """Return the answer without thinking and end marks; nothing if the renderer can't read it at all."""
        try:
            with _rendering:
                message, _ = self.renderer.parse_response(list(sampled))
        except RendererError:
            return ""
        # Some renderers lift tool calls out of the content; for a bash-tool action they are the action.
        calls = [_tool_call_text(call) for call in message.get("tool_calls", ())]
        unread = [call.raw_text for call in message.get("unparsed_tool_calls", ())]
        return "".join([get_text_content(message), *calls, *unread])

    def _render(self, answer: str, message: str) -> list[int]:
        chat = [_message("user", "task"), _message("assistant", answer), _message("user", message)]
        return self.renderer.build_generation_prompt(chat).to_ints()

    def _find_tail(self) -> int:
        """Return how many tokens of a probe conversation precede the end of its answer."""
        lengths: set[int] = set()
        for message in _PROBE_MESSAGES:
            first, second = (self._render(answer, message) for answer in _PROBE_ANSWERS)
            common = 0
            while common < min(len(first), len(second)) and first[-1 - common] == second[-1 - common]:
                common += 1
            lengths.add(len(first) - common)
        if len(lengths) != 1:
            raise UsageError(
                f"renderer {type(self.renderer).__name__} can't be continued token by token: what precedes the end of "
                f"an answer depends on the message after it (at {sorted(lengths)} tokens)"
            )
        return lengths.pop()

    def _after_stop(self, tail: list[int], stop: str | int) -> list[int] | None:
        if isinstance(stop, int):
            return tail[1:] if tail[:1] == [stop] else None
        text = cast(str, self.renderer.tokenizer.decode(tail))
        return self._encode(text.removeprefix(stop)) if text.startswith(stop) else None

    def _encode(self, text: str) -> list[int]:
        return self.renderer.tokenizer.encode(text, add_special_tokens=False)


def _tool_call_text(call: ToolCall) -> str:
    name = json.dumps(call.function.name)
    return f'<tool_call>{{"name": {name}, "arguments": {call.function.arguments}}}</tool_call>'


def _message(role: str, content: str) -> Message:
    return Message(role=role, content=content)
