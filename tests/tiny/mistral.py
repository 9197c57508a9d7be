"""Tiny Mistral 3 models and their tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

import torch

MARKS = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "<pad>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% set text = message['content'] if message['content'] is string else message['content'][0]['text'] %}"
    "{% if message['role'] == 'system' %}[SYSTEM_PROMPT]{{ text }}[/SYSTEM_PROMPT]"
    "{% else %}[INST]{{ text }}[/INST]{% endif %}{% endfor %}"
)
"""How Mistral Small 3 wraps a message of the system and one of the user."""


def write_mistral_tokenizer(folder: Path, length: int, side: str = "right", system: str = "") -> int:
    """Write a byte-level tokenizer that begins every text with a mark; returns the size of its vocabulary.

    Args:
        side: where the padding goes.
        system: a text whose words and marks are one token each.
    """
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    letters = sorted(ByteLevel.alphabet())
    made = Tokenizer(BPE(vocab={piece: index for index, piece in enumerate((*MARKS, *letters))}, merges=[]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.post_processor = TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", MARKS.index("<s>"))]
    )
    pieces = dict.fromkeys(re.findall(r" ?[A-Za-z]{2,}|[.,\n]", system))
    made.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    marks = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        **marks,
        additional_special_tokens=[mark for mark in MARKS if mark.startswith("[")],
        model_max_length=length,
        padding_side=side,
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)


def build_mistral_3(
    vocabulary_size: int, width: int, layers: int, kind: str = "mistral", head: bool = True
) -> torch.nn.Module:
    """Mistral 3 with the smallest tower for images it can have.

    Args:
        kind: its language model, ``mistral`` or ``ministral3``.
        head: with the one that makes words.
    """
    from transformers.models.mistral3.configuration_mistral3 import Mistral3Config
    from transformers.models.mistral3.modeling_mistral3 import (
        Mistral3ForConditionalGeneration,
        Mistral3Model,
    )

    text = {
        "model_type": kind,
        "vocab_size": vocabulary_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "pad_token_id": MARKS.index("<pad>"),
        "bos_token_id": MARKS.index("<s>"),
        "eos_token_id": MARKS.index("</s>"),
    }
    vision = {
        "model_type": "pixtral",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "head_dim": 8,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Mistral3Config(
        text_config=text,
        vision_config=vision,
        image_token_index=MARKS.index("[IMG]"),
        tie_word_embeddings=False,
    )
    return (Mistral3ForConditionalGeneration if head else Mistral3Model)(config)
