"""A cookbook renderer as the token environment's chat codec."""

import logging
from collections.abc import Sequence
from typing import Any, cast

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.renderers.base import get_text_content

from harbor_gym.codecs.hf import HFCodec
from harbor_gym.codecs.marks import Marks, ReadsMarks
from harbor_gym.codecs.tail import PROBE_TASK, ChatTail, Messages, tokenizer_lock
from harbor_gym.errors import UsageError
from harbor_gym.formats.tool_text import ToolCall, write_calls
from harbor_gym.types import ChatMessage

logger = logging.getLogger(__name__)


def renderer_of(name: str, tokenizer: Any, *, model_name: str | None = None) -> Renderer:
    """Return a renderer of the cookbook, or one that was registered with it.

    Args:
        name: The renderer's name.
        tokenizer: A Hugging Face tokenizer, or one of the cookbook's.
        model_name: The name by which the tokenizer was loaded, if that is not its ``name_or_path``.

    Raises:
        UsageError: There is no renderer of this name, or it needs more than a tokenizer.
    """
    try:
        return get_renderer(name, tokenizer, model_name=model_name)
    except RendererError as exc:
        raise UsageError(f"renderer_name {name!r} can't be used: {exc}") from exc


CHAT_TEMPLATE = "chat_template"
"""A renderer's name that stands for the tokenizer's own chat template."""


def codec_of(name: str, tokenizer: Any, *, model_name: str | None = None) -> "TrainedCodec":
    """Return the codec of a renderer's name.

    Args:
        name: :data:`CHAT_TEMPLATE`, or as in :func:`renderer_of`.
        tokenizer: A Hugging Face tokenizer, or one of the cookbook's.
        model_name: As in :func:`renderer_of`.

    Raises:
        UsageError: There is no renderer of this name or no chat template, or it can't be continued token by token.
    """
    if name != CHAT_TEMPLATE:
        return RendererCodec(renderer_of(name, tokenizer, model_name=model_name))
    if not getattr(tokenizer, "chat_template", None):
        model = model_name or getattr(tokenizer, "name_or_path", "the model")
        raise UsageError(f"{model} has no chat template: name the cookbook's renderer of its chats (--renderer-name)")
    return HFCodec(tokenizer)


class RendererCodec:
    """Write a chat as tokens with a tinker-cookbook renderer, extending the prompt and never rendering it again.

    Only public methods of the renderer are used; the tokens after an answer are found by probing, see
    :mod:`harbor_gym.codecs.tail`. A mark of the format in content stays text, as in :class:`harbor_gym.HFCodec`, even
    if the renderer itself would read it as a control token.

    Args:
        renderer: Any cookbook renderer for text.

    Raises:
        UsageError: The renderer writes an earlier answer in a way that can't be continued token by token.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        with tokenizer_lock:
            self._marks = Marks(renderer.tokenizer)
            self._writer = _with_tokenizer(renderer, ReadsMarks(renderer.tokenizer, self._marks))
            self.stop: list[str] | list[int] = renderer.get_stop_sequences()
            name = f"renderer {type(renderer).__name__}"
            self._tail = ChatTail(self._render, encode=self._encode, decode=self._decode, name=name)
        self.off_template = not renderer.has_extension_property
        """Whether the model's own chat template would drop earlier thinking, which stays in these prompts."""
        if self.off_template:
            logger.warning(
                "renderer %s drops earlier thinking from a chat's history; here the sampled tokens stay in the prompt, "
                "so that each observation extends the last one",
                type(renderer).__name__,
            )

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens that precede the model's first answer."""
        with tokenizer_lock:
            return self._write(messages)

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        """Return the tokens between ``sampled`` and the next answer."""
        with tokenizer_lock:
            return self._tail.after(sampled, [{"role": "user", "content": message}], self.stop)

    def text(self, sampled: Sequence[int]) -> str:
        """Return the answer without thinking and end marks; nothing if the renderer can't read it at all."""
        try:
            with tokenizer_lock:
                message, _ = self.renderer.parse_response(list(sampled))
        except RendererError:
            return ""
        # Some renderers move tool calls out of the content; a bash-tool action is such a call.
        calls = [ToolCall(call.function.name, call.function.arguments) for call in message.get("tool_calls", ())]
        text = get_text_content(message)
        # A block that was opened and never closed is listed and left in the content.
        unread = [call.raw_text for call in message.get("unparsed_tool_calls", ()) if call.raw_text not in text]
        return "".join([text, write_calls("", calls), *unread])

    def _render(self, answer: str, messages: Messages) -> list[int]:
        return self._write([_message("user", PROBE_TASK), _message("assistant", answer), *messages])

    def _write(self, messages: Sequence[Any]) -> list[int]:
        chat = [_message(message["role"], message["content"]) for message in self._marks.break_in(messages)]
        return self._writer.build_generation_prompt(chat).to_ints()

    def _encode(self, text: str) -> list[int]:
        return self.renderer.tokenizer.encode(text, add_special_tokens=False)

    def _decode(self, tokens: Sequence[int]) -> str:
        return cast(str, self.renderer.tokenizer.decode(list(tokens)))


type TrainedCodec = RendererCodec | HFCodec
"""A codec that knows where a message ends, and whether it leaves its template."""


def _with_tokenizer(renderer: Renderer, tokenizer: Any) -> Renderer:
    """Return the same renderer with another tokenizer. The cookbook's own copy would load a tokenizer by name."""
    made = object.__new__(type(renderer))
    vars(made).update(vars(renderer), tokenizer=tokenizer)
    return made


def _message(role: str, content: str) -> Message:
    return Message(role=role, content=content)
