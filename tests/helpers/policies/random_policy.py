"""Policies of random weights for the embedded server, trained in no time."""

import importlib.resources
from pathlib import Path

from harbor_gym.embedded.policy import build_model, build_tokenizer, save_policy
from harbor_gym.formats.prompts import system_prompt
from harbor_gym.types import ActionFormat

LONG_VECTOR = 25
"""Makes the last token of a message as likely as all others together: an endless message is never typed."""


def write_random_policy(folder: Path) -> Path:
    """Write a policy of few words as one Hugging Face directory and return it; its renderer is ``qwen3_instruct``."""
    return _write(folder, system_prompt(ActionFormat.KEYSTROKES), LONG_VECTOR)


def write_endless_policy(folder: Path) -> Path:
    """Write likewise a policy that hardly ends a message, and to which Terminus-2's prompt is few tokens."""
    template = importlib.resources.files("harbor").joinpath("agents/terminus_2/templates/terminus-json-plain.txt")
    return _write(folder, template.read_text(encoding="utf-8"), 1)


def _write(folder: Path, corpus: str, long_vector: float) -> Path:
    tokenizer = build_tokenizer([corpus] * 3, 768)
    model = build_model(tokenizer, hidden_size=64, layers=1)
    (vectors,) = model.get_input_embeddings().parameters()
    vectors.data[tokenizer.convert_tokens_to_ids("<|im_end|>")] *= long_vector
    save_policy(model, tokenizer, folder)
    return folder


def write_random_model(folder: Path, architecture: str) -> Path:
    """Write a model of random weights of one of the server's architectures, with a tokenizer and a chat template."""
    import transformers

    tokenizer = build_tokenizer([system_prompt(ActionFormat.KEYSTROKES)] * 3, 768)
    config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(
        vocab_size=len(tokenizer) + -len(tokenizer) % 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,  # answers then hang on the prompt
    )
    model = getattr(transformers, architecture)(config).float()
    save_policy(model, tokenizer, folder)
    return folder
