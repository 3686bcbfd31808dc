"""Chat codecs: write a chat as tokens so that each prompt extends the last one by the sampled tokens."""

from harbor_gym.codecs.hf import HFCodec
from harbor_gym.codecs.tail import ChatTail, ComparesTemplate, tokenizer_lock

__all__ = ["ChatTail", "ComparesTemplate", "HFCodec", "tokenizer_lock"]
