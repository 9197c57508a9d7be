"""Random-weight pieces that several tiny models are made of, and the folder they are written to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.tiny.stable_diffusion import CONTEXT, WORDS, build_text_encoder, write_tokenizer

__all__ = ["build_clip", "build_t5", "build_text_encoder", "build_vae", "write_folder", "write_t5_tokenizer"]
T5_LENGTH = 12


def write_t5_tokenizer(folder: Path, length: int = T5_LENGTH) -> int:
    """Write a T5 tokenizer of whole words and letters; returns the size of its vocabulary."""
    from transformers.models.t5.tokenization_t5 import T5Tokenizer

    words = sorted({word for line in WORDS for word in line.split()})
    letters = [chr(code) for code in range(33, 127)]
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(f"▁{word}" for word in words), *letters]
    vocab = [(piece, 0.0 if index < 3 else -float(index)) for index, piece in enumerate(pieces)]
    tokenizer = T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=length)
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)


def build_t5(vocabulary_size: int, width: int = 20) -> torch.nn.Module:
    from transformers.models.t5.configuration_t5 import T5Config
    from transformers.models.t5.modeling_t5 import T5EncoderModel

    return T5EncoderModel(
        T5Config(
            vocab_size=vocabulary_size,
            d_model=width,
            d_kv=width // 2,
            d_ff=2 * width,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
        )
    )


def build_clip(
    vocabulary_size: int, width: int = 24, heads: int = 2, activation: str = "quick_gelu"
) -> torch.nn.Module:
    """A CLIP text encoder with a projection."""
    from transformers.models.clip.configuration_clip import CLIPTextConfig
    from transformers.models.clip.modeling_clip import CLIPTextModelWithProjection

    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=vocabulary_size,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=heads,
            hidden_act=activation,
            max_position_embeddings=CONTEXT,
            projection_dim=width,
            bos_token_id=vocabulary_size - 2,
            eos_token_id=vocabulary_size - 1,
            pad_token_id=vocabulary_size - 1,
        )
    )


def build_vae(factor: int, channels: int = 4, shift: float | None = None, quant: bool = True) -> Any:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    levels = factor.bit_length()
    return AutoencoderKL(
        block_out_channels=(8,) * levels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        latent_channels=channels,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=0.5,
        shift_factor=shift,
        use_quant_conv=quant,
        use_post_quant_conv=quant,
    )


def write_clip_tokenizer(folder: Path, **options: str) -> int:
    return write_tokenizer(folder, **options)


def write_folder(
    folder: Path,
    pipeline_class: str,
    modules: Mapping[str, torch.nn.Module],
    tokenizers: Mapping[str, str],
    scheduler: Mapping[str, Any],
) -> Path:
    """Write modules, a scheduler config and the index of a diffusers folder.

    Args:
        modules: by part name; their weights are stirred, because fresh models have output layers at zero.
        tokenizers: part name -> class name; already written.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    index: dict[str, Any] = {"_class_name": pipeline_class, "_diffusers_version": "0.36.0"}
    for name, module in modules.items():
        for parameter in module.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        module.save_pretrained(str(folder / name))
        library = "transformers" if type(module).__module__.startswith("transformers") else "diffusers"
        index[name] = [library, type(module).__name__]
    index |= {name: ["transformers", kind] for name, kind in tokenizers.items()}
    index["scheduler"] = ["diffusers", scheduler["_class_name"]]
    (folder / "scheduler").mkdir(parents=True, exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(
        json.dumps(scheduler, indent=2), encoding="utf-8"
    )
    (folder / "model_index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return folder
