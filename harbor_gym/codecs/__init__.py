"""Chat codecs: how a chat becomes tokens so that each prompt extends the last one by what was sampled."""

from harbor_gym.codecs.hf import HFCodec
from harbor_gym.codecs.tail import ChatTail, ComparesTemplate, tokenizer_lock

__all__ = ["ChatTail", "ComparesTemplate", "HFCodec", "tokenizer_lock"]
