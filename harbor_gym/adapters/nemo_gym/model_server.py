"""NeMo Gym's model server as a chat endpoint, with a record of every call as NeMo Gym returns it."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harbor_gym.errors import ContextOverflowError, SamplerError, UsageError
from harbor_gym.formats.tool_text import ToolCall, write_calls
from harbor_gym.samplers.attempts import AnswerError, AttemptError, History, ask_patiently, no_json, status_error
from harbor_gym.samplers.chat import ChatAnswer
from harbor_gym.samplers.overflow import is_overflow
from harbor_gym.samplers.statuses import EngineSettingsError
from harbor_gym.types import Sample

type Item = dict[str, Any]
"""An item of the Responses API, as JSON."""

type Post = Callable[[dict[str, Any]], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""Sends a body to the model server's ``/v1/responses``; returns the answer's status, headers and body."""

CALL = "model_call"
"""Key in an answer's message with the number of its call, whose items are sent back unchanged."""

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")

ROUTES = "routed_experts"
"""The field beside them with the routed experts of a mixture of experts: of each token of the prompt and the sample."""

_PACKED_ROUTES = re.compile(r"nrlre1:\w+:\d+x(\d+)x(\d+):")
"""How NeMo RL's envelope of routed experts begins: a type, then tokens, layers and choices. Source: NeMo RL,
``nemo_rl/utils/routed_experts_codec.py``; NeMo Gym passes it on unread, as it does nested lists."""

_OVERFLOWS = ("context length", "max_tokens")
"""Texts by which NeMo Gym distinguishes an overflow from another status 400, in addition to the engines' messages."""

_WRAPPED = "calling an inner server: "
"""Text in the status 500 with which NeMo Gym's servers report that an engine refused a request. Source:
``nemo_gym.server_utils.SimpleServer.setup_exception_middleware``."""

_WRAPPED_STATUSES = (
    (401, re.compile(r'"code": ?401\b|invalid_api_(key|token)|authentication_error|"error": ?"Unauthorized"')),
    (403, re.compile(r'"code": ?403\b')),
    (404, re.compile(r'"code": ?(404\b|"model_not_found")')),
)
"""The engine's status in such an answer, by patterns in vLLM's and OpenAI's bodies."""

_SHOWN_CHARACTERS = 500


@dataclass(frozen=True)
class ModelCall:
    """One answered call."""

    items: Sequence[Item]
    """The output items, as the server returned them."""

    prompt: Sequence[int] | None
    """The prompt's token ids; None if the server returns none."""

    sampled: Sequence[int]
    """The sampled token ids."""


@dataclass(slots=True)
class ServerHistory(History):
    """What is known of a model server."""

    routes: tuple[int, int] | None = None
    """Layers and choices of a token in the last answer with routed experts; None where no answer had them."""

    def note_routes(self, routes: object) -> None:
        """Note the form of an answer's routed experts; one that only the trainer knows is left out."""
        match routes:
            case str():
                if found := _PACKED_ROUTES.match(routes):
                    self.routes = int(found[1]), int(found[2])
            case [[[*choices], *_] as layers, *_]:
                self.routes = len(layers), len(choices)
            case _:
                pass


class ModelServer:
    """Requests one episode's answers from the model server. Earlier answers are sent back with their token ids.

    So a server that supports ``required_prefix_token_ids`` prompts with the sampled tokens, not with a new rendering.
    Their routed experts, each time those of the whole prompt, are not sent back.

    Args:
        post: Sends a request.
        params: The row's ``responses_create_params``; ``input`` is replaced.
        require_token_ids: Whether to refuse answers without token ids.
        max_attempts: Most attempts at a request while the server, or its engine, fails or is overloaded.
        history: What is known of the server; one object for all episodes that call it.
    """

    def __init__(
        self,
        post: Post,
        params: Mapping[str, Any],
        *,
        require_token_ids: bool = False,
        max_attempts: int = 4,
        history: ServerHistory | None = None,
    ) -> None:
        self._history = history or ServerHistory()
        self._post, self._params = post, {name: value for name, value in params.items() if name != "input"}
        self._require_token_ids, self._max_attempts = require_token_ids, max_attempts
        self.calls: list[ModelCall] = []
        """Every answered call, in order."""
        self.misuse: UsageError | None = None
        """Why no further call can succeed, if that is known."""

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatAnswer:
        """Return the answer to a chat.

        Raises:
            ContextOverflowError: The chat does not fit the context window.
            SamplerError: The server fails, or does not answer with one message.
            UsageError: Token ids are required, but the server returns none.
            EngineSettingsError: The engine refuses the key or the model.
        """
        body = {**self._params, "input": as_items(messages, self.calls)}
        if tools:
            body["tools"] = [_tool(tool) for tool in tools]
        try:
            try:
                output, is_cut = await ask_patiently(lambda: self._ask(body), max_attempts=self._max_attempts)
            except AttemptError as exc:
                self._history.note(exc)
                raise
        except EngineSettingsError as exc:
            self.misuse = exc
            raise
        try:
            return self._understood(output, is_cut)
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise SamplerError(f"the model server's answer has an item of an unknown form: {exc!r:.200}") from exc

    def _understood(self, output: Sequence[Item], is_cut: bool) -> ChatAnswer:
        trained = next((item for item in reversed(output) if item.get("generation_token_ids") is not None), None)
        if trained is None and self._require_token_ids:
            self.misuse = UsageError(
                "the model server returns no token ids, and require_token_ids is set: start it with "
                "return_token_id_information: true"
            )
            raise self.misuse
        prompt, sampled = (None, []) if trained is None else _trained_tokens(trained)
        answer = self._answer(output, is_cut, len(prompt or ()), len(sampled))
        self._history.note_routes(trained and trained.get(ROUTES))
        self.calls.append(ModelCall(output, prompt, sampled))
        return answer

    async def _ask(self, body: dict[str, Any]) -> tuple[list[Item], bool]:
        answer = _read(*await self._post(body), has_answered=self._history.has_answered)
        self._history.has_answered = True
        return answer

    def _answer(self, output: Sequence[Item], is_cut: bool, prompt_tokens: int, sampled_tokens: int) -> ChatAnswer:
        text, calls = _text(output), [item for item in output if item["type"] == "function_call"]
        message: dict[str, Any] = {"role": "assistant", "content": text, CALL: len(self.calls)}
        if reasoning := _reasoning(output):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": item["call_id"], "type": "function", "function": _function(item)} for item in calls
            ]
        written = write_calls(text, [ToolCall(item["name"], item["arguments"]) for item in calls])
        return ChatAnswer(written, message, "length" if is_cut else "stop", prompt_tokens, sampled_tokens)


def as_items(messages: Sequence[Mapping[str, Any]], calls: Sequence[ModelCall]) -> list[Item]:
    """Return a chat as input items; an answer has the items of its call, without their routed experts."""
    return [item for message in messages for item in _items_of(message, calls)]


def _items_of(message: Mapping[str, Any], calls: Sequence[ModelCall]) -> Sequence[Item]:
    if (number := message.get(CALL)) is not None:
        return [without(item, ROUTES) for item in calls[number].items]
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": content}]
    items = [{"type": "message", "role": role, "content": content}] if content or role != "assistant" else []
    return items + [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()
    ]


def without(item: Item, *names: str) -> Item:
    """Return an item without these fields."""
    return {name: value for name, value in item.items() if name not in names}


def _engine_status(status: int, text: str) -> int:
    _, wrapped, refusal = text.replace("\\", "").partition(_WRAPPED)  # the refusal is an escaped JSON string
    if status != 500 or not wrapped:
        return status
    if is_overflow(400, refusal):
        return 400
    return next((known for known, words in _WRAPPED_STATUSES if words.search(refusal)), status)


def _read(status: int, headers: Mapping[str, str], content: bytes, *, has_answered: bool) -> tuple[list[Item], bool]:
    """Return the output items, and whether the answer was cut at the token limit.

    Raises:
        ContextOverflowError, SamplerError, EngineSettingsError: As the model server's call does.
    """
    shown = content[:_SHOWN_CHARACTERS].decode(errors="replace")
    text = content.decode(errors="replace")
    status = _engine_status(status, text)
    if is_overflow(status, text) or (status == 400 and any(words in text for words in _OVERFLOWS)):
        raise ContextOverflowError(f"the model server refuses the chat: {shown}")
    if status != 200:
        refusal = f"the model server answered with status {status}: {shown}"
        error = status_error(refusal, status, text, headers, has_answered=has_answered)
        if isinstance(error, EngineSettingsError):
            error = EngineSettingsError(
                f"correct policy_api_key, policy_model_name or policy_base_url in env.yaml ({refusal})"
            )
        raise error
    try:
        response = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise no_json("the model server", content, has_answered=has_answered) from exc
    try:
        output, reason = list(response["output"]), (response.get("incomplete_details") or {}).get("reason")
        is_empty = not _holds_anything(output)
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise AnswerError(f"the model server did not answer with a response: {shown}") from exc
    if reason not in (None, "max_output_tokens"):
        raise SamplerError(f"the model server ended a message with {reason!r}")
    if reason and is_empty:
        # NeMo Gym's vLLM server returns this for an engine's refusal, unless it propagates the refusal.
        raise ContextOverflowError(
            "the model server returned an empty answer: the chat does not fit its context window"
        )
    return output, reason is not None


def _trained_tokens(item: Item) -> tuple[Sequence[int], Sequence[int]]:
    """Return the prompt and the sampled tokens of an output item.

    Raises:
        SamplerError: They can't be trained on.
        KeyError, TypeError: They are no lists.
    """
    prompt = Sample(item["prompt_token_ids"]).checked().tokens
    return prompt, Sample(item["generation_token_ids"], item.get("generation_log_probs")).checked().tokens


def _holds_anything(output: Sequence[Item]) -> bool:
    return any(item["type"] != "message" or item.get("generation_token_ids") for item in output) or bool(_text(output))


def _text(output: Sequence[Item]) -> str:
    messages = [item for item in output if item["type"] == "message" and item.get("role") == "assistant"]
    return "".join(part.get("text") or part.get("refusal") or "" for item in messages for part in item["content"])


def _reasoning(output: Sequence[Item]) -> str:
    thinking = [item for item in output if item["type"] == "reasoning"]
    return "\n".join(part["text"] for item in thinking for part in item.get("summary") or ())


def _function(item: Item) -> dict[str, str]:
    return {"name": item["name"], "arguments": item["arguments"]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {},
        "strict": False,
    }
