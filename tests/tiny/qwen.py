"""Tiny language models of the Qwen family and their tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.stable_diffusion import WORDS

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:",
    "\nuser\nassistant\n<think>\n\n</think>\n\n",
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""How Qwen3 wraps messages, in so far as a single message of the user is concerned."""


def write_qwen_tokenizer(folder: Path, length: int = 4096) -> int:
    """Write a byte-level tokenizer that knows the words of the templates; returns the size of its vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    letters = sorted(ByteLevel.alphabet())
    blank = Qwen2Tokenizer(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    # repeated, because a pair must be seen twice to be joined
    made = blank.train_new_from_iterator(
        [*TEXTS, *WORDS] * 4, 700, new_special_tokens=list(SPECIAL), show_progress=False
    )
    made.model_max_length, made.chat_template = length, CHAT
    made.save_pretrained(str(folder))
    return len(made)


def build_qwen3(vocabulary_size: int, width: int = 16, layers: int = 3) -> torch.nn.Module:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

    return Qwen3Model(
        Qwen3Config(
            vocab_size=vocabulary_size,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=4096,
        )
    )
