"""A model provider's endpoint for any agent, answered by any sampler, token for token."""

from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.gateway.chat import Message, ParsedAnswer
from harbor_gym.gateway.codec import ConversationCodec, ReasoningCodec, TextConversationCodec
from harbor_gym.gateway.config import GatewayConfig
from harbor_gym.gateway.group import SessionGroup
from harbor_gym.gateway.limits import SessionLimits
from harbor_gym.gateway.records import BreakReason, CallKind, CallRecord
from harbor_gym.gateway.server import Gateway
from harbor_gym.gateway.session import Session
from harbor_gym.gateway.template_codec import TemplateConversationCodec

__all__ = [
    "BreakReason",
    "CallKind",
    "CallRecord",
    "ConversationCodec",
    "Gateway",
    "GatewayConfig",
    "Message",
    "ParsedAnswer",
    "ReasoningCodec",
    "Session",
    "SessionGroup",
    "SessionLimits",
    "TemplateConversationCodec",
    "TextConversationCodec",
    "ToolCall",
    "ToolDefinition",
]
