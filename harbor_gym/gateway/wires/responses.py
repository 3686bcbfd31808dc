"""OpenAI's responses: ``POST /v1/responses``.

Source: https://platform.openai.com/docs/api-reference/responses and its page on streaming events. Responses are not
stored: every request carries its whole input, as codex and opencode do.
"""

import itertools
import time
from collections.abc import Iterator
from typing import Any, cast

from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.gateway.chat import Answer, ChatRequest, Message, Role
from harbor_gym.gateway.errors import InvalidRequestError, RequestError
from harbor_gym.gateway.wires.chat_completions import openai_words
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

# codex retries after every other status.
_ENDED_STATUS = 400

_STORED = ("previous_response_id", "conversation", "prompt", "background")
"""Fields that refer to something stored at the provider."""

_UNSUPPORTED = {**dict.fromkeys(_STORED, "nothing is stored, send the whole input"), **CONSTRAINTS}

_TEXT_TYPES = ("input_text", "output_text", "text", "summary_text", "reasoning_text")

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ResponsesWire:
    """Responses, whole and streamed."""

    def read(self, body: Body) -> ChatRequest:
        """Parse a request."""
        require_unset(body, _UNSUPPORTED)
        require_free_text(mapping(body.get("text"), "text").get("format"), "text.format")
        messages: list[Message] = []
        if instructions := string(body.get("instructions"), "instructions", ""):
            messages.append(Message("system", instructions))
        given = body.get("input")
        if isinstance(given, str):
            messages.append(Message("user", string(given, "input")))
        else:
            messages += _merged_answers([_message(item) for item in objects(given, "input")])
        tools = (_tool(item) for item in objects(body.get("tools"), "tools"))
        return ChatRequest(
            model=model_name(body),
            messages=tuple(messages),
            tools=tuple(tool for tool in tools if tool is not None),
            stream=body.get("stream") is True,
            max_calls=openai_call_limit(body),
        )

    def plain(self, body: Body, answer: Answer) -> dict[str, Any]:
        """Return a ``response``."""
        is_cut = answer.stop_reason == "length"
        prompt, sampled = len(answer.prompt), len(answer.sampled)
        return {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "incomplete" if is_cut else "completed",
            "model": body.get("model") or "",
            "output": _items(body, answer),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "temperature": body.get("temperature"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + sampled,
            },
        }

    def events(self, body: Body, answer: Answer) -> Iterator[Event]:
        """Yield ``response.created``, the items, and ``response.completed`` or ``response.incomplete``."""
        numbers = itertools.count()
        for name, data in _events(self.plain(body, answer)):
            yield Event({"type": name, "sequence_number": next(numbers), **data}, name)

    def error(self, error: RequestError) -> tuple[int, dict[str, Any]]:
        """Return status and body as OpenAI's API does."""
        kind, code = openai_words(error.kind)
        status = http_status(error.kind, ended=_ENDED_STATUS)
        return status, {"error": {"message": str(error), "type": kind, "param": None, "code": code}}


def _message(item: Body) -> Message:
    match item.get("type", "message"):
        case "message":
            role = _ROLES.get(cast("str", item.get("role")))
            if role is None:
                raise InvalidRequestError(f"an input message has the unknown role {item.get('role')!r:.40}")
            return Message(role, text_of(item.get("content"), f"content of a {role} message", types=_TEXT_TYPES))
        case "function_call":
            return _call_message(item, "arguments")
        case "custom_tool_call":
            return _call_message(item, "input")
        case "function_call_output" | "custom_tool_call_output":
            output = text_of(item.get("output"), "a tool call's output", types=_TEXT_TYPES)
            return Message("tool", output, tool_call_id=string(item.get("call_id"), "call_id", ""))
        case "reasoning":
            parts = item.get("content") or item.get("summary")
            return Message("assistant", "", reasoning=text_of(parts, "reasoning", types=_TEXT_TYPES))
        case kind:
            raise InvalidRequestError(f"an input item has the unsupported type {kind!r:.40}")


def _call_message(item: Body, field: str) -> Message:
    name = string(item.get("name"), "a tool call's name")
    arguments = string(item.get(field), f"a tool call's {field}", "")
    return Message("assistant", "", (ToolCall(name, arguments, string(item.get("call_id"), "call_id", "")),))


def _merged_answers(messages: list[Message]) -> list[Message]:
    """Return the messages with the items of one answer (reasoning, text, calls) as one message."""
    merged: list[Message] = []
    for is_answer, group in itertools.groupby(messages, lambda message: message.role == "assistant"):
        if not is_answer:
            merged += group
            continue
        parts = list(group)
        calls = tuple(call for part in parts for call in part.tool_calls)
        content = "\n".join(part.content for part in parts if part.content)
        if content or calls:
            merged.append(Message("assistant", content, calls, reasoning="".join(part.reasoning for part in parts)))
    return merged


def _tool(item: Body) -> ToolDefinition | None:
    """Return a tool that the client runs itself; a server's own tool (a web search) is left out."""
    if item.get("type") not in ("function", "custom"):
        return None
    return ToolDefinition(
        name=string(item.get("name"), "a tool's name"),
        description=string(item.get("description"), "a tool's description", ""),
        parameters=mapping(item.get("parameters"), "a tool's parameters"),
        is_freeform=item["type"] == "custom",
    )


def _items(body: Body, answer: Answer) -> list[dict[str, Any]]:
    freeform = {tool.get("name") for tool in objects(body.get("tools"), "tools") if tool.get("type") == "custom"}
    items: list[dict[str, Any]] = []
    if answer.parsed.reasoning:
        content = [{"type": "reasoning_text", "text": answer.parsed.reasoning}]
        items.append({"type": "reasoning", "id": new_id("rs_"), "summary": [], "content": content})
    if answer.parsed.content.strip() or not answer.parsed.tool_calls:
        part = {"type": "output_text", "text": answer.parsed.content, "annotations": []}
        message = {"type": "message", "id": new_id("msg_"), "role": "assistant", "content": [part]}
        items.append({**message, "status": "completed"})
    items += [_call_item(call, is_freeform=call.name in freeform) for call in answer.parsed.tool_calls]
    return items


def _call_item(call: ToolCall, *, is_freeform: bool) -> dict[str, Any]:
    named = {"call_id": call.id, "name": call.name, "status": "completed"}
    if is_freeform:
        return {"type": "custom_tool_call", "id": new_id("ctc_"), **named, "input": call.arguments}
    return {"type": "function_call", "id": new_id("fc_"), **named, "arguments": call.arguments}


type _Named = tuple[str, dict[str, Any]]


def _events(response: dict[str, Any]) -> Iterator[_Named]:
    started = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": index}
        yield "response.output_item.added", {"output_index": index, "item": _emptied(item)}
        yield from _item_events(item, place)
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is before its first delta."""
    empty = {key: type(item[key])() for key in ("content", "arguments", "input") if key in item}
    return {**item, **empty, **({"status": "in_progress"} if "status" in item else {})}


def _item_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[_Named]:
    match item["type"]:
        case "message":
            part, text = item["content"][0], item["content"][0]["text"]
            place = {**place, "content_index": 0}
            yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**place, "delta": text, "logprobs": []}
            yield "response.output_text.done", {**place, "text": text, "logprobs": []}
            yield "response.content_part.done", {**place, "part": part}
        case "reasoning":
            place, text = {**place, "content_index": 0}, item["content"][0]["text"]
            yield "response.reasoning_text.delta", {**place, "delta": text}
            yield "response.reasoning_text.done", {**place, "text": text}
        case "function_call":
            yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**place, **done}
        case _:
            yield "response.custom_tool_call_input.delta", {**place, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**place, "input": item["input"]}
