"""The wire formats that agents speak, each translated to and from :mod:`harbor_gym.gateway.chat`."""

from harbor_gym.gateway.wires.chat_completions import ChatCompletionsWire
from harbor_gym.gateway.wires.messages import MessagesWire
from harbor_gym.gateway.wires.responses import ResponsesWire
from harbor_gym.gateway.wires.wire import Body, Event, Wire

__all__ = ["Body", "ChatCompletionsWire", "Event", "MessagesWire", "ResponsesWire", "Wire"]
