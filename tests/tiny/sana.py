"""A tiny Sana folder with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.tiny.pieces import write_folder

LENGTH = 12


def write_gemma_tokenizer(folder: Path, length: int = LENGTH, pieces: Sequence[str] = ()) -> int:
    """Write a Gemma tokenizer of single letters; returns the size of its vocabulary.

    Args:
        pieces: texts that are one token each.
    """
    from transformers import AddedToken
    from transformers.models.gemma.tokenization_gemma import GemmaTokenizer

    letters = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *(chr(code) for code in range(33, 127))]
    vocab = {piece: index for index, piece in enumerate(letters)}
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[], model_max_length=length, add_bos_token=True)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in dict.fromkeys(pieces)])
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)


def build_gemma(vocabulary_size: int, width: int = 20, layers: int = 2, length: int = 64) -> torch.nn.Module:
    from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Model

    return Gemma2Model(
        Gemma2Config(
            vocab_size=vocabulary_size,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=10,
            max_position_embeddings=length,
            sliding_window=length // 2,
            query_pre_attn_scalar=10,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
        )
    )


def build_transformer(channels: int = 4) -> torch.nn.Module:
    from diffusers.models.transformers.sana_transformer import SanaTransformer2DModel

    return SanaTransformer2DModel(
        in_channels=channels,
        out_channels=channels,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=12,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=20,
        sample_size=8,
        patch_size=1,
    )


def build_deep_vae(factor: int, channels: int = 4) -> torch.nn.Module:
    from diffusers.models.autoencoders.autoencoder_dc import AutoencoderDC

    levels = factor.bit_length()
    return AutoencoderDC(
        latent_channels=channels,
        attention_head_dim=4,
        encoder_block_out_channels=(8,) * levels,
        decoder_block_out_channels=(8,) * levels,
        encoder_layers_per_block=(1,) * levels,
        decoder_layers_per_block=(1,) * levels,
        encoder_qkv_multiscales=((),) * levels,
        decoder_qkv_multiscales=((),) * levels,
        scaling_factor=0.5,
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_gemma_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_gemma(size),
            "vae": build_deep_vae(factor),
        }
        scheduler = {
            "_class_name": "DPMSolverMultistepScheduler",
            "num_train_timesteps": 1000,
            "prediction_type": "flow_prediction",
            "use_flow_sigmas": True,
            "flow_shift": 3.0,
            "solver_order": 2,
        }
        write_folder(folder, "SanaPipeline", modules, {"tokenizer": "GemmaTokenizerFast"}, scheduler)


def _pipeline(cfg: float) -> dict[str, object]:
    return {
        "max_sequence_length": LENGTH,
        "use_resolution_binning": False,
        "clean_caption": False,
        "complex_human_instruction": [],
    }


FAMILIES = {"SANA": write}
PIPELINE = {"SANA": _pipeline}
