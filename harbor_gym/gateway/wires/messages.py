"""Anthropic's messages: ``POST /v1/messages``.

Source: https://docs.anthropic.com/en/api/messages and its page on streaming. ``cache_control``, thinking blocks and
server-side tools of a request have no effect here.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.gateway.chat import Answer, ChatRequest, Message
from harbor_gym.gateway.errors import ErrorKind, InvalidRequestError, RequestError
from harbor_gym.gateway.wires.parameters import (
    CONSTRAINTS,
    anthropic_call_limit,
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

# claude-code retries after 401 and exits after 403.
_ENDED_STATUS = 403

_UNSUPPORTED = {
    "stop_sequences": CONSTRAINTS["stop"],
    "mcp_servers": "tools run at the client only",
    "container": "tools run at the client only",
}

# A block that claude-code puts before its system prompt: it changes from request to request and is not for the model.
_BILLING_HEADER = "x-anthropic-billing-header:"

_ERROR_TYPES = {
    ErrorKind.UNAUTHORIZED: "authentication_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.TIMEOUT: "timeout_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.TOO_MANY_REQUESTS: "rate_limit_error",
    ErrorKind.INTERNAL: "api_error",
    ErrorKind.SAMPLER_FAILED: "api_error",
    ErrorKind.SESSION_ENDED: "permission_error",
}


class MessagesWire:
    """Messages, whole and streamed."""

    def read(self, body: Body) -> ChatRequest:
        """Parse a request."""
        require_unset(body, _UNSUPPORTED)
        require_free_text(body.get("output_format"), "output_format")
        require_free_text(mapping(body.get("output_config"), "output_config").get("format"), "output_config.format")
        messages = [message for item in objects(body.get("messages"), "messages") for message in _messages(item)]
        system = _system_text(body.get("system"))
        if system:
            messages.insert(0, Message("system", system))
        tools = [_tool(item) for item in objects(body.get("tools"), "tools") if "input_schema" in item]
        return ChatRequest(
            model=model_name(body),
            messages=tuple(messages),
            tools=tuple(tools),
            stream=body.get("stream") is True,
            max_calls=anthropic_call_limit(body),
        )

    def plain(self, body: Body, answer: Answer) -> dict[str, Any]:
        """Return a ``message``."""
        return {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": body.get("model") or "",
            "content": _blocks(answer),
            "stop_reason": _stop_reason(answer),
            "stop_sequence": None,
            "usage": {**_input_usage(answer), "output_tokens": len(answer.sampled)},
        }

    def events(self, body: Body, answer: Answer) -> Iterator[Event]:
        """Yield ``message_start``, the blocks, ``message_delta`` and ``message_stop``."""
        whole = self.plain(body, answer)
        usage = {**_input_usage(answer), "output_tokens": 0}
        yield _event("message_start", message={**whole, "content": [], "stop_reason": None, "usage": usage})
        for index, block in enumerate(whole["content"]):
            empty, deltas = _streamed(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=whole["usage"])
        yield _event("message_stop")

    def error(self, error: RequestError) -> tuple[int, dict[str, Any]]:
        """Return status and body as Anthropic's API does."""
        kind = _ERROR_TYPES.get(error.kind, "invalid_request_error")
        message = str(error)
        if error.kind is ErrorKind.CONTEXT_OVERFLOW:
            message = f"prompt is too long: {message}"  # the text that clients look for
        status = http_status(error.kind, ended=_ENDED_STATUS)
        return status, {"type": "error", "error": {"type": kind, "message": message}}


def _system_text(value: object) -> str:
    if isinstance(value, list):
        value = [part for part in cast("list[object]", value) if not _is_billing_header(part)]
    return text_of(value, "system")


def _is_billing_header(part: object) -> bool:
    match part:
        case {"text": str() as text}:
            return text.startswith(_BILLING_HEADER)
        case _:
            return False


def _messages(item: Body) -> Iterator[Message]:
    """Yield one message per tool result, then one for the rest of the content."""
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequestError(f"a message has the unknown role {role!r:.40}")
    if not isinstance(content, list):
        yield Message(role, text_of(content, f"content of a {role} message"))
        return
    texts: list[object] = []
    calls: list[ToolCall] = []
    thinking: list[str] = []
    is_empty = True
    for block in objects(cast("object", content), "content"):
        match block.get("type"):
            case "tool_result":
                is_empty = False
                yield _tool_result(block)
            case "tool_use":
                calls.append(_read_call(block))
            case "thinking":
                thinking.append(string(block.get("thinking"), "thinking", ""))
            case "redacted_thinking":
                pass
            case _:
                texts.append(block)
    if texts or calls or is_empty:
        text = text_of(texts, f"content of a {role} message")
        yield Message(role, text, tuple(calls), reasoning="\n".join(thinking))


def _tool_result(block: Body) -> Message:
    text = text_of(block.get("content"), "a tool result")
    if block.get("is_error") is True:
        text = f"[error]\n{text}"
    return Message("tool", text, tool_call_id=string(block.get("tool_use_id"), "tool_use_id", ""))


def _read_call(block: Body) -> ToolCall:
    arguments = json.dumps(mapping(block.get("input"), "a tool call's input"))
    name = string(block.get("name"), "a tool call's name")
    return ToolCall(name, arguments, string(block.get("id"), "a tool call's id", ""))


def _tool(item: Body) -> ToolDefinition:
    return ToolDefinition(
        name=string(item.get("name"), "a tool's name"),
        description=string(item.get("description"), "a tool's description", ""),
        parameters=mapping(item.get("input_schema"), "a tool's input_schema"),
    )


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.parsed.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.parsed.reasoning, "signature": ""})
    if answer.parsed.content.strip() or not answer.parsed.tool_calls:
        blocks.append({"type": "text", "text": answer.parsed.content})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in answer.parsed.tool_calls
    ]
    return blocks


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as it starts, and the deltas that fill it."""
    match block["type"]:
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
            return {**block, "thinking": ""}, deltas
        case "tool_use":
            partial = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            return {**block, "input": {}}, [partial]
        case _:
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _stop_reason(answer: Answer) -> str:
    if answer.stop_reason == "length":
        return "max_tokens"
    return "tool_use" if answer.parsed.tool_calls else "end_turn"


def _input_usage(answer: Answer) -> dict[str, int]:
    return {"input_tokens": len(answer.prompt), "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def _event(name: str, **data: Any) -> Event:
    return Event({"type": name, **data}, name)
