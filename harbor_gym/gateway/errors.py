"""The errors that answer a request.

RequestError                 the base: a kind, which every wire maps to its own status and message
├── InvalidRequestError          the body can't be read, or needs something that is not supported
├── SessionEndedError            the session's episode is over: a budget ran out, or its owner closed it
├── LastAnswersError             the calls under way may be the episode's last ones
└── ContextOverflowError         the prompt and a full answer would not fit the context window
"""

from enum import Enum

from harbor_gym.types import EndReason


class ErrorKind(Enum):
    """The kind of an error, independent of the wire. A value below 1000 is the default HTTP status."""

    INVALID_REQUEST = 400
    UNAUTHORIZED = 401
    NOT_FOUND = 404
    TIMEOUT = 408
    TOO_LARGE = 413
    NO_WEBSOCKET = 426
    TOO_MANY_REQUESTS = 429
    INTERNAL = 500
    SAMPLER_FAILED = 503
    CONTEXT_OVERFLOW = 4001
    SESSION_ENDED = 4002


class RequestError(Exception):
    """A request can't be answered; the message is for the client and holds no secret."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class InvalidRequestError(RequestError):
    """The request can't be read, or needs something that is not supported."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.INVALID_REQUEST, message)


class SessionEndedError(RequestError):
    """The session takes no more requests."""

    def __init__(self, reason: EndReason | None) -> None:
        match reason:
            case None:
                why = "its session was closed"
            case EndReason.INFRASTRUCTURE_ERROR:
                why = "the policy can't be sampled with these settings"
            case _:
                why = f"its budget ran out ({reason})"
        super().__init__(ErrorKind.SESSION_ENDED, f"the episode has ended: {why}; stop")


class LastAnswersError(RequestError):
    """The calls under way may be the last ones that a budget allows."""

    def __init__(self) -> None:
        super().__init__(ErrorKind.TOO_MANY_REQUESTS, "the episode's last answers are being sampled")


class ContextOverflowError(RequestError):
    """The prompt leaves no room for a full answer."""

    def __init__(self, prompt_tokens: int, answer_tokens: int, limit: int) -> None:
        super().__init__(
            ErrorKind.CONTEXT_OVERFLOW,
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens and {answer_tokens} are reserved for the answer. Please reduce the length of the "
            "messages.",
        )
