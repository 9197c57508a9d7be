"""Tiny language models of the Qwen family and their tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.stable_diffusion import WORDS

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PICTURES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
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


def write_qwen_tokenizer(folder: Path, length: int = 4096, pictures: bool = False, chat: str = CHAT) -> int:
    """Write a byte-level tokenizer that knows the words of the templates; returns the size of its vocabulary.

    Args:
        pictures: with the marks of images.
        chat: the template of messages.
    """
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    letters = sorted(ByteLevel.alphabet())
    blank = Qwen2Tokenizer(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    # repeated, because a pair must be seen twice to be joined
    made = blank.train_new_from_iterator(
        [*TEXTS, *WORDS] * 4,
        700,
        new_special_tokens=[*SPECIAL, *(PICTURES if pictures else ())],
        show_progress=False,
    )
    made.model_max_length, made.chat_template = length, chat
    made.save_pretrained(str(folder))
    return len(made)


def picture_marks(tokenizer: Path) -> tuple[int, ...]:
    """The tokens of ``PICTURES`` in the folder of a tokenizer."""
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    made: list[int] = Qwen2Tokenizer.from_pretrained(str(tokenizer)).convert_tokens_to_ids(list(PICTURES))
    return tuple(made)


def build_qwen_vl(
    vocabulary_size: int, width: int = 16, layers: int = 2, pictures: tuple[int, ...] = ()
) -> torch.nn.Module:
    """Qwen2.5-VL, with the smallest tower for images it can have.

    Args:
        pictures: tokens of the marks in ``PICTURES``, if it is to be shown images.
    """
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": vocabulary_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [1, 1, width // 4 - 2],
        },
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    vision = {
        "depth": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_heads": 1,
        "out_hidden_size": width,
        "fullatt_block_indexes": [0],
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    marks = dict(zip(names, pictures, strict=False))
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=text, vision_config=vision, **marks)
    )


def build_qwen3_vl(
    vocabulary_size: int,
    width: int = 8,
    layers: int = 3,
    head: bool = False,
    pictures: tuple[int, ...] = (),
    patch: int = 16,
) -> torch.nn.Module:
    """Qwen3-VL with the smallest tower for images it can have.

    Args:
        head: with the one that makes words.
        pictures: tokens of the marks in ``PICTURES``, if it is to be shown images.
        patch: pixels of the sides of a patch.
    """
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import (
        Qwen3VLForConditionalGeneration,
        Qwen3VLModel,
    )

    text = {
        "vocab_size": vocabulary_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    vision = {
        "depth": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_heads": 1,
        "out_hidden_size": width,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
        "patch_size": patch,
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    marks = dict(zip(names, pictures, strict=False))
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **marks)
    return (Qwen3VLForConditionalGeneration if head else Qwen3VLModel)(config)


def build_qwen3(
    vocabulary_size: int, width: int = 16, layers: int = 3, head: bool = False
) -> torch.nn.Module:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM, Qwen3Model

    kind = Qwen3ForCausalLM if head else Qwen3Model
    return kind(
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
