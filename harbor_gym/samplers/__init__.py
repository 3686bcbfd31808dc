"""Samplers, which answer an episode's prompts in token ids or in messages."""

from harbor_gym.errors import BudgetSpentError
from harbor_gym.samplers.batch import BatchSampler
from harbor_gym.samplers.chat import ChatAnswer, ChatEndpoint, run_chat_episode
from harbor_gym.samplers.completions import CompletionsSampler
from harbor_gym.samplers.sglang import SGLangSampler
from harbor_gym.samplers.statuses import EngineSettingsError

__all__ = [
    "BatchSampler",
    "BudgetSpentError",
    "ChatAnswer",
    "ChatEndpoint",
    "CompletionsSampler",
    "EngineSettingsError",
    "SGLangSampler",
    "run_chat_episode",
]
