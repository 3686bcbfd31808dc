"""OpenAI's chat completions: ``POST /v1/chat/completions``.

Source: https://platform.openai.com/docs/api-reference/chat; ``return_token_ids``, ``prompt_token_ids`` and
``token_ids`` as vLLM has them.
"""

import time
from collections.abc import Iterator
from typing import Any, cast

from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.gateway.chat import Answer, ChatRequest, Message, Role
from harbor_gym.gateway.errors import ErrorKind, InvalidRequestError, RequestError
from harbor_gym.gateway.wires.parameters import (
    CONSTRAINTS,
    openai_call_limit,
    require_free_text,
    require_unset,
)
from harbor_gym.gateway.wires.wire import (
    Body,
    Event,
    http_status,
    mapping,
    model_name,
    new_id,
    objects,
    string,
    text_of,
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

_UNSUPPORTED = {
    "functions": "declare tools",
    "function_call": "declare tools, with tool_choice",
    "audio": "only text is supported",
    "web_search_options": "there is no web search here",
    "chat_template": "the codec writes prompts",
    "continue_final_message": "a prefilled answer can't be continued",
    **CONSTRAINTS,
}

# litellm (Terminus-2, mini-swe-agent) gives up at once on an authentication error and repeats most others.
_ENDED_STATUS = 401


class ChatCompletionsWire:
    """Chat completions, whole and streamed."""

    def read(self, body: Body) -> ChatRequest:
        """Parse a request."""
        if body.get("n") not in (None, 1):
            raise InvalidRequestError("n must be 1")
        require_unset(body, _UNSUPPORTED)
        require_free_text(body.get("response_format"), "response_format")
        messages = tuple(_message(item) for item in objects(body.get("messages"), "messages"))
        return ChatRequest(
            model=model_name(body),
            messages=messages,
            tools=tuple(_tool(item) for item in objects(body.get("tools"), "tools")),
            stream=body.get("stream") is True,
            max_calls=openai_call_limit(body),
        )

    def plain(self, body: Body, answer: Answer) -> dict[str, Any]:
        """Return a ``chat.completion``."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.parsed.content}
        if answer.parsed.reasoning:
            message["reasoning_content"] = answer.parsed.reasoning
        if answer.parsed.tool_calls:
            message["content"] = answer.parsed.content or None
            message["tool_calls"] = [_call(call) for call in answer.parsed.tool_calls]
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer), **_tokens(body, answer)}
        whole = {**_header(body, "chat.completion"), "choices": [choice], "usage": _usage(answer)}
        return whole | _prompt_tokens(body, answer)

    def events(self, body: Body, answer: Answer) -> Iterator[Event]:
        """Yield ``chat.completion.chunk`` objects, and ``[DONE]``."""
        header = _header(body, "chat.completion.chunk")
        first = {"role": "assistant", "content": ""}
        yield Event(
            {**header, "choices": [{"index": 0, "delta": first, "finish_reason": None}]} | _prompt_tokens(body, answer)
        )
        deltas: list[dict[str, Any]] = []
        if answer.parsed.reasoning:
            deltas.append({"reasoning_content": answer.parsed.reasoning})
        if answer.parsed.content:
            deltas.append({"content": answer.parsed.content})
        for index, call in enumerate(answer.parsed.tool_calls):
            deltas.append({"tool_calls": [{"index": index, **_call(call)}]})
        for delta in deltas:
            yield Event({**header, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        last = {"index": 0, "delta": {}, "finish_reason": _finish_reason(answer), **_tokens(body, answer)}
        yield Event({**header, "choices": [last]})
        options = mapping(body.get("stream_options"), "stream_options")
        if options.get("include_usage"):
            yield Event({**header, "choices": [], "usage": _usage(answer)})
        yield Event("[DONE]")

    def error(self, error: RequestError) -> tuple[int, dict[str, Any]]:
        """Return status and body as OpenAI's API does."""
        status = http_status(error.kind, ended=_ENDED_STATUS)
        kind, code = openai_words(error.kind)
        return status, {"error": {"message": str(error), "type": kind, "param": None, "code": code}}


def openai_words(kind: ErrorKind) -> tuple[str, str]:
    """Return OpenAI's ``type`` and ``code`` for an error."""
    match kind:
        case ErrorKind.UNAUTHORIZED:
            return "authentication_error", "invalid_api_key"
        case ErrorKind.SESSION_ENDED:
            return "authentication_error", "episode_ended"
        case ErrorKind.CONTEXT_OVERFLOW:
            return "invalid_request_error", "context_length_exceeded"
        case ErrorKind.TOO_MANY_REQUESTS:
            return "rate_limit_error", "rate_limit_exceeded"
        case ErrorKind.INTERNAL | ErrorKind.SAMPLER_FAILED:
            return "server_error", kind.name.lower()
        case _:
            return "invalid_request_error", kind.name.lower()


def _message(item: Body) -> Message:
    role = _ROLES.get(cast("str", item.get("role")))
    if role is None:
        raise InvalidRequestError(f"a message has the unknown role {item.get('role')!r:.40}")
    content = text_of(item.get("content"), f"content of a {role} message")
    if role == "tool":
        return Message(role, content, tool_call_id=string(item.get("tool_call_id"), "tool_call_id", ""))
    if role != "assistant":
        return Message(role, content)
    require_unset(item, {"function_call": "send tool_calls"})
    calls = tuple(_read_call(call) for call in objects(item.get("tool_calls"), "tool_calls"))
    reasoning = item.get("reasoning_content") or item.get("reasoning")
    return Message(role, content, calls, reasoning=reasoning if isinstance(reasoning, str) else "")


def _read_call(item: Body) -> ToolCall:
    match item:
        case {"function": {"name": str() as name} as function}:
            arguments = string(cast("Body", function).get("arguments"), "a tool call's arguments", "")
        case {"custom": {"name": str() as name} as custom}:
            arguments = string(cast("Body", custom).get("input"), "a tool call's input", "")
        case _:
            raise InvalidRequestError("a tool call has no function with a name")
    return ToolCall(name, arguments, string(item.get("id"), "a tool call's id", ""))


def _tool(item: Body) -> ToolDefinition:
    function = mapping(item.get("function"), "a tool's function")
    return ToolDefinition(
        name=string(function.get("name"), "a tool's name"),
        description=string(function.get("description"), "a tool's description", ""),
        parameters=mapping(function.get("parameters"), "a tool's parameters"),
    )


def _header(body: Body, kind: str) -> dict[str, Any]:
    return {"id": new_id("chatcmpl-"), "object": kind, "created": int(time.time()), "model": body.get("model") or ""}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(answer: Answer) -> str:
    return "tool_calls" if answer.parsed.tool_calls and answer.stop_reason == "stop" else answer.stop_reason


def _usage(answer: Answer) -> dict[str, Any]:
    prompt, sampled = len(answer.prompt), len(answer.sampled)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _tokens(body: Body, answer: Answer) -> dict[str, Any]:
    """Return the log-probabilities and token ids for the choice, if the request asks for them."""
    added: dict[str, Any] = {}
    if body.get("logprobs") and answer.logprobs is not None:
        pairs = zip(answer.sampled, answer.logprobs, strict=True)
        content = [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in pairs
        ]
        added["logprobs"] = {"content": content, "refusal": None}
    if body.get("return_token_ids"):
        added["token_ids"] = list(answer.sampled)
    return added


def _prompt_tokens(body: Body, answer: Answer) -> dict[str, Any]:
    return {"prompt_token_ids": list(answer.prompt)} if body.get("return_token_ids") else {}
