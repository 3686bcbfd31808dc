"""The interface of a wire format, and the JSON parsing that all of them share."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from harbor_gym.formats.tool_text import encodable
from harbor_gym.gateway.chat import Answer, ChatRequest
from harbor_gym.gateway.errors import ErrorKind, InvalidRequestError, RequestError

_MAX_MODEL_NAME = 256

type Body = Mapping[str, Any]
"""A request's JSON object."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    data: Mapping[str, Any] | str
    """A JSON object, or text."""

    name: str | None = None
    """The event's name, if the wire names events."""

    def encode(self) -> bytes:
        """Return the event as it is sent."""
        data = self.data if isinstance(self.data, str) else json.dumps(self.data)
        name = "" if self.name is None else f"event: {self.name}\n"
        return f"{name}data: {data}\n\n".encode()


class Wire(Protocol):
    """One wire format. Implementations hold no state."""

    def read(self, body: Body) -> ChatRequest:
        """Parse a request.

        Raises:
            InvalidRequestError: ``body`` is malformed, or needs something that is not supported.
        """
        ...

    def plain(self, body: Body, answer: Answer) -> dict[str, Any]:
        """Return the answer as one JSON object."""
        ...

    def events(self, body: Body, answer: Answer) -> Iterator[Event]:
        """Yield the answer as server-sent events."""
        ...

    def error(self, error: RequestError) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and body for an error."""
        ...


def new_id(prefix: str) -> str:
    """Return a fresh identifier."""
    return f"{prefix}{secrets.token_hex(12)}"


def http_status(kind: ErrorKind, *, ended: int) -> int:
    """Return the HTTP status of an error; ``ended`` is the status after which the wire's clients don't retry."""
    match kind:
        case ErrorKind.SESSION_ENDED:
            return ended
        case ErrorKind.CONTEXT_OVERFLOW:
            return 400
        case _:
            return kind.value


def text_of(value: object, where: str, *, types: Sequence[str] = ("text",)) -> str:
    """Return the text of a content value: a string, nothing, or a list of text parts, joined by line breaks.

    Args:
        value: The JSON value.
        where: The value's name in an error.
        types: The types of parts that hold text.

    Raises:
        InvalidRequestError: The value holds something that is not text.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return encodable(value)
    if not isinstance(value, list):
        raise InvalidRequestError(f"{where} must be a string or a list of parts")
    texts: list[str] = []
    for part in cast("list[object]", value):
        match part:
            case str():
                texts.append(encodable(part))
            case {"type": str() as kind, "text": str() as text} if kind in types:
                texts.append(encodable(text))
            case {"type": "refusal", "refusal": str() as text}:
                texts.append(encodable(text))
            case {"type": str() as kind}:
                raise InvalidRequestError(f"{where} has a part of type {kind!r:.40}; only text is supported")
            case _:
                raise InvalidRequestError(f"{where} has a part without a type")
    return "\n".join(texts)


def string(value: object, where: str, default: str | None = None) -> str:
    """Return ``value``, which must be a string; ``default`` replaces a missing one.

    Raises:
        InvalidRequestError: ``value`` is not a string.
    """
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where} must be a string")
    return encodable(value)


def model_name(body: Body) -> str:
    """Return the model name of a request, empty if it has none.

    Raises:
        InvalidRequestError: The name is not a string, or too long to be stored with each call.
    """
    name = string(body.get("model"), "model", "")
    if len(name) > _MAX_MODEL_NAME:
        raise InvalidRequestError(f"model is longer than {_MAX_MODEL_NAME} characters")
    return name


def objects(value: object, where: str) -> list[Body]:
    """Return ``value``, which must be a list of JSON objects; None is an empty list.

    Raises:
        InvalidRequestError: ``value`` is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[object]", value)):
        raise InvalidRequestError(f"{where} must be a list of objects")
    return cast("list[Body]", value)


def mapping(value: object, where: str) -> Body:
    """Return ``value``, which must be a JSON object; None is an empty one.

    Raises:
        InvalidRequestError: ``value`` is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} must be an object")
    return cast("Body", value)
