"""A policy of random weights for the embedded server: compiled and trained in no time, and of few words."""

from pathlib import Path

from harbor_gym.embedded.policy import build_model, build_tokenizer, save_policy
from harbor_gym.formats.prompts import system_prompt
from harbor_gym.types import ActionFormat

LONG_VECTOR = 25
"""Makes the last token of a message as likely as all others together: an endless message is never typed."""


def write_random_policy(folder: Path) -> Path:
    """Write model and tokenizer as one Hugging Face directory and return it; its renderer is ``qwen3_instruct``."""
    tokenizer = build_tokenizer([system_prompt(ActionFormat.KEYSTROKES)] * 3, 768)
    model = build_model(tokenizer, hidden_size=64, layers=1)
    (vectors,) = model.get_input_embeddings().parameters()
    vectors.data[tokenizer.convert_tokens_to_ids("<|im_end|>")] *= LONG_VECTOR
    save_policy(model, tokenizer, folder)
    return folder
