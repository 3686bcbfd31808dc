"""A Hugging Face tokenizer's chat template as a chat codec. transformers itself is never imported."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harbor_gym.codecs.marks import Marks
from harbor_gym.codecs.tail import PROBE_TASK, ChatTail, Messages, common_prefix, tokenizer_lock
from harbor_gym.errors import UsageError
from harbor_gym.types import ChatMessage

logger = logging.getLogger(__name__)

_THINK, _END_THINK = "<think>", "</think>"
_PROBE_THINKING = "hm"
_PROBE_ANSWER = "0"
_PROBE_NEXT: Messages = ({"role": "user", "content": "next"},)


class ChatTokenizer(Protocol):
    """The part of a tokenizer's interface that a codec needs, as in ``transformers``."""

    eos_token_id: Any
    """Id of the end-of-text token; None if there is none."""

    def apply_chat_template(self, conversation: Any, /, **settings: Any) -> Any:
        """Return a chat as text, for ``tokenize=False``."""
        ...

    def encode(self, text: Any, /, **settings: Any) -> Any:
        """Return the ids of ``text``."""
        ...

    def decode(self, token_ids: Any, /, **settings: Any) -> Any:
        """Return the text of ids."""
        ...


class HFCodec:
    """Write a chat as tokens with a tokenizer's chat template, extending the prompt and never rendering it again.

    The tokens between an answer and the next one are found by probing the template, so any template works in which
    they don't depend on the answer. Thinking (a ``<think>`` block at the beginning of an answer, opened by the policy
    or the template) stays in the prompt as it was sampled and is left out of :meth:`text`. A mark of the format in
    content, such as ``<|im_end|>`` in a file that the policy reads, stays text (:mod:`harbor_gym.codecs.marks`). Safe
    for concurrent calls.

    Args:
        tokenizer: Any object with ``apply_chat_template``, ``encode``, ``decode`` and ``eos_token_id``.
        chat_template: A Jinja template, or a template's name; None uses the tokenizer's own.
        stop_token_ids: Tokens that end an answer. None: the template's end of a message and the tokenizer's
            ``eos_token_id``.
        tools: JSON schemas of the tools that the template declares to the model.
        template_kwargs: Further arguments of the template, such as ``enable_thinking=False``.

    Raises:
        UsageError: The template can't be continued token by token, fails, or has no known end of a message.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        chat_template: str | None = None,
        stop_token_ids: Sequence[int] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self._settings: dict[str, Any] = dict(template_kwargs)
        if chat_template is not None:
            self._settings["chat_template"] = chat_template
        if tools is not None:
            self._settings["tools"] = [dict(tool) for tool in tools]
        with tokenizer_lock:
            self._marks = Marks(tokenizer, _template_source(tokenizer, chat_template))
            self._tail = self._probe()
            self._opening = self._write([_user(PROBE_TASK)])
            self.stop = self._stop_tokens() if stop_token_ids is None else list(stop_token_ids)
            probes = [self._encode(text) for text in self._probe_answers()]
            is_off_template = any(self._is_off_template(probe) for probe in probes)
        self.off_template = is_off_template
        """Whether the template would write an earlier answer differently, for instance without its thinking."""
        if self.off_template:
            logger.warning(
                "the chat template writes earlier answers differently from how they are sampled (it drops thinking); "
                "here the sampled tokens stay in the prompt, so that each observation extends the last one"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments; unpickling probes the template again."""
        return _remake, (self.tokenizer, self._settings, self.stop)

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens that precede the model's first answer."""
        with tokenizer_lock:
            return self._encode(self._write(messages))

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        """Return the tokens between ``sampled`` and the next answer."""
        return self.next_messages(sampled, [_user(message)])

    def next_messages(self, sampled: Sequence[int], messages: Messages) -> list[int]:
        """Return the tokens between ``sampled`` and the next answer, with ``messages`` in between.

        Args:
            sampled: The tokens as they were sampled.
            messages: Messages as the template takes them, for instance of the role ``tool``; none of an assistant.
        """
        with tokenizer_lock:
            return self._tail.after(sampled, messages, self.stop)

    def text(self, sampled: Sequence[int]) -> str:
        """Return the answer without thinking and end marks. Thinking that was not closed leaves no answer."""
        return self._split(sampled)[1]

    def reasoning(self, sampled: Sequence[int]) -> str:
        """Return the thinking of an answer; empty if it has none."""
        return self._split(sampled)[0]

    def is_off_template(self, sampled: Sequence[int]) -> bool:
        """Return whether the template would write this answer differently in a later turn's prompt.

        If so, the model sees from the next turn on a chat that its template would not have written: the price of
        prompts that extend one another.
        """
        with tokenizer_lock:
            return self._is_off_template(sampled)

    def written(self, message: Mapping[str, Any]) -> str:
        """Return the text that the template writes for an earlier answer, without its thinking and end marks.

        Args:
            message: An assistant message as the template takes it, for instance with ``tool_calls``.
        """
        with tokenizer_lock:
            text = self._marks.unbroken(self._write([_user(PROBE_TASK), message, *_PROBE_NEXT]))
            following = self._decode(self._tail.of(_PROBE_NEXT))
            ends = [self._decode([token]) for token in self.stop]
        thinking = self._opening.find(_THINK, self._opening.rfind(PROBE_TASK))
        opening = self._opening if thinking < 0 else self._opening[:thinking]
        answer = text[common_prefix(text, opening) :].removesuffix(following)
        for end in ends:
            answer = answer.partition(end)[0]
        return answer.rpartition(_END_THINK)[2].lstrip("\n")

    def _split(self, sampled: Sequence[int]) -> tuple[str, str]:
        """Return the thinking and the answer."""
        with tokenizer_lock:
            text = self._decode(self._without_end(sampled))
        opened = text.lstrip()
        if not opened.startswith(_THINK) and not self._opens_thinking:
            return "", text
        thinking, closed, answer = opened.removeprefix(_THINK).partition(_END_THINK)
        return thinking.strip(), answer.lstrip("\n") if closed else ""

    def _is_off_template(self, sampled: Sequence[int]) -> bool:
        text = self._decode(self._without_end(sampled))
        # The mark that the template opened belongs to the answer, as a client would send it back.
        answer = f"{_THINK}\n{text}" if self._opens_thinking else text
        written = self._write([_user(PROBE_TASK), {"role": "assistant", "content": answer}, *_PROBE_NEXT])
        return self._marks.unbroken(written) != self._opening + text + self._decode(self._tail.of(_PROBE_NEXT))

    @property
    def _opens_thinking(self) -> bool:
        return self._opening.rstrip().endswith(_THINK)

    def _probe_answers(self) -> tuple[str, str]:
        opening = "" if self._opens_thinking else f"{_THINK}\n"
        return _PROBE_ANSWER, f"{opening}{_PROBE_THINKING}\n{_END_THINK}\n\n{_PROBE_ANSWER}"

    def _probe(self) -> ChatTail:
        def render(answer: str, messages: Messages) -> list[int]:
            return self._encode(self._write([_user(PROBE_TASK), {"role": "assistant", "content": answer}, *messages]))

        name = f"the chat template of {type(self.tokenizer).__name__}"
        try:
            return ChatTail(render, encode=self._encode, decode=self._decode, name=name)
        except UsageError:
            raise
        except Exception as exc:  # any exception of a foreign template means that it can't be used
            raise UsageError(f"{name} can't write a task, an answer and a message: {exc}") from exc

    def _stop_tokens(self) -> list[int]:
        end, eos = self._tail.of(_PROBE_NEXT)[:1], self.tokenizer.eos_token_id
        is_mark = bool(end) and not self.tokenizer.decode(end, skip_special_tokens=True)
        stop = end if is_mark else []
        stop += [eos] if isinstance(eos, int) and eos not in stop else []
        if not stop:
            raise UsageError("the tokenizer has no eos_token_id and no end of a message: pass stop_token_ids")
        return stop

    def _without_end(self, sampled: Sequence[int]) -> Sequence[int]:
        return sampled[:-1] if sampled and sampled[-1] in self.stop else sampled

    def _write(self, chat: Messages | Sequence[ChatMessage]) -> str:
        settings = self._settings
        if "tools" in settings:
            settings = {**settings, "tools": self._marks.break_all(settings["tools"])}
        return self.tokenizer.apply_chat_template(
            self._marks.break_in(chat), add_generation_prompt=True, tokenize=False, **settings
        )

    def _encode(self, text: str) -> list[int]:
        return self._marks.encode(text, add_special_tokens=False)

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)


def _remake(tokenizer: ChatTokenizer, settings: Mapping[str, Any], stop_token_ids: Sequence[int]) -> HFCodec:
    return HFCodec(tokenizer, stop_token_ids=stop_token_ids, **settings)


def _template_source(tokenizer: ChatTokenizer, chat_template: str | None) -> str:
    """Return the sources of the templates that may be in use; empty if none is known."""
    own: Any = getattr(tokenizer, "chat_template", None) or ""
    sources = [str(source) for source in (own.values() if isinstance(own, dict) else [own])]
    return "\n".join([*sources, chat_template or ""])


def _user(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)
