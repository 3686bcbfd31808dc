"""The tiny policy's parts: a byte-level tokenizer with Qwen3's chat tokens, and a Qwen3 model of a few million weights.

Both are written as an ordinary Hugging Face directory, so the cookbook's ``get_tokenizer`` and ``get_renderer`` and
SkyRL's server take its path wherever they take a model's name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3ForCausalLM

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of Qwen3 that stand for themselves in text; the renderers look them up by name."""

MAX_POSITIONS = 8192
_PACKAGES = ("skyrl", "tinker", "tinker_cookbook", "tokenizers", "torch", "transformers")
_VOCABULARY_STEP = 64
_BYTES = 256
_LONGEST_TOKEN = 48
"""Bytes of the longest token. Whole phrases become tokens: a turn then costs tens of tokens instead of a hundred, so
sampling and training cost a fraction, and there are few places where a sampled message can leave the format."""
_PIECES = (
    r'(?:(?:\\n)?[\[\]{},"]*"[a-z_]+":[\[{]*)+"?'  # the text around the values of a JSON message
    r"|[0-9]{1,3}"
    r"|\n+"
    r'|["\\]'
    r'|[^"\\\n0-9]+'
)
"""Where a token must end. Between these places the corpus decides."""
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(corpus: Iterable[str], vocab_size: int = 2048) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer that any Qwen3 renderer of the cookbook can use.

    Args:
        corpus: Text to learn merges from. Every other text still round-trips, byte by byte.
        vocab_size: Tokens at most, chat tokens included; a multiple of 64, at least 320. A small corpus gives fewer.

    Raises:
        UsageError: ``vocab_size`` can't be used.
        MissingDependencyError: tokenizers or transformers is not installed.
    """
    if vocab_size % _VOCABULARY_STEP or vocab_size < _BYTES + _VOCABULARY_STEP:
        raise UsageError(f"vocab_size must be a multiple of {_VOCABULARY_STEP} and at least 320, not {vocab_size}")
    with training_stack():
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(ADDED_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=_LONGEST_TOKEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in ADDED_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden_size: int = 192, layers: int = 4, seed: int = 0
) -> Qwen3ForCausalLM:
    """Make a randomly initialised Qwen3 model, about 2 million float32 weights by default.

    Args:
        tokenizer: Gives the vocabulary, rounded up to a multiple of 64, and the special tokens' ids.
        hidden_size: Width; a multiple of 64, which is the size of a head.
        layers: Transformer blocks.
        seed: Decides every weight.

    Raises:
        UsageError: ``hidden_size`` can't be split into heads.
        MissingDependencyError: torch or transformers is not installed.
    """
    head_size = 64
    if hidden_size % head_size or hidden_size < head_size:
        raise UsageError(f"hidden_size must be a multiple of {head_size}, not {hidden_size}")
    with training_stack():
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // _VOCABULARY_STEP) * _VOCABULARY_STEP,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // head_size,
        num_key_value_heads=1,
        head_dim=head_size,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).float()


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out_dir: Path) -> None:
    """Write model and tokenizer as one Hugging Face directory, which is made if missing."""
    with without_bars():
        model.save_pretrained(out_dir)
        tokenizer.save_pretrained(out_dir)


def load_policy(directory: Path | str, **settings: Any) -> tuple[Any, Any]:
    """Return a directory's causal language model, in float32, and its tokenizer.

    Args:
        directory: A Hugging Face directory.
        settings: Further arguments of ``from_pretrained``.
    """
    with training_stack():
        from transformers import AutoModelForCausalLM, AutoTokenizer
    with without_bars():
        tokenizer = AutoTokenizer.from_pretrained(directory, **settings)
        return AutoModelForCausalLM.from_pretrained(directory, dtype="float32", **settings).eval(), tokenizer


@contextlib.contextmanager
def without_bars() -> Generator[None]:
    """Print no progress bars of transformers during the block."""
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def training_stack() -> Generator[None]:
    """Import the packages of the embedded backend; a missing one becomes one clear line.

    Raises:
        MissingDependencyError: A package of the extras is not installed. A broken one keeps its own error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise MissingDependencyError(
            f"the embedded backend needs {package}, which is not installed: "
            'pip install "harbor-gym[tinker,server]", then run `harbor-gym server install`'
        ) from error
