"""A tiny HiDream-I1 folder with random weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from tests.tiny.ernie_image import write_ministral_tokenizer
from tests.tiny.pieces import (
    build_clip,
    build_t5,
    build_vae,
    write_clip_tokenizer,
    write_folder,
    write_t5_tokenizer,
)
from tests.tiny.stable_diffusion import CONTEXT, WORDS

LAYERS = 3
LLAMA_WIDTH, T5_WIDTH, CLIP_WIDTH = 16, 20, 24


def build_llama(vocabulary_size: int, width: int = LLAMA_WIDTH, layers: int = LAYERS) -> torch.nn.Module:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary_size,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def build_transformer(channels: int = 4) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_hidream_image import HiDreamImageTransformer2DModel

    return HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=channels,
        out_channels=channels,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        caption_channels=[T5_WIDTH, LLAMA_WIDTH],
        text_emb_dim=2 * CLIP_WIDTH,
        num_routed_experts=3,
        num_activated_experts=2,
        axes_dims_rope=(4, 6, 6),
        max_resolution=(16, 16),
        # the last state is read more than once, as in the published model
        llama_layers=[0, 1, 2, 2],
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clips = [write_clip_tokenizer(folder / name) for name in ("tokenizer", "tokenizer_2")]
        pieces = write_t5_tokenizer(folder / "tokenizer_3")
        # short words within a text are one token, as they are for T5
        words = (*WORDS, "of a cat")
        size = write_ministral_tokenizer(folder / "tokenizer_4", length=CONTEXT, words=words)
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_clip(clips[0], CLIP_WIDTH),
            "text_encoder_2": build_clip(clips[1], CLIP_WIDTH),
            "text_encoder_3": build_t5(pieces, T5_WIDTH),
            "text_encoder_4": build_llama(size),
            "vae": build_vae(factor, shift=0.1, quant=False),
        }
        scheduler = {
            "_class_name": "UniPCMultistepScheduler",
            "num_train_timesteps": 1000,
            "prediction_type": "flow_prediction",
            "use_flow_sigmas": True,
            "flow_shift": 3.0,
        }
        tokenizers = {
            "tokenizer": "CLIPTokenizer",
            "tokenizer_2": "CLIPTokenizer",
            "tokenizer_3": "T5TokenizerFast",
            "tokenizer_4": "PreTrainedTokenizerFast",
        }
        write_folder(folder, "HiDreamImagePipeline", modules, tokenizers, scheduler)


def _pipeline(cfg: float) -> dict[str, object]:
    return {"max_sequence_length": CONTEXT}


def sized_as_asked(folder: Path, monkeypatch: Any) -> dict[str, object]:
    """Let the pipeline make images of the size it is asked for; it brings all to one area, that of large ones."""
    from diffusers import HiDreamImagePipeline

    call: Any = HiDreamImagePipeline.__call__

    def sized(self: Any, *given: Any, height: int, width: int, **named: Any) -> Any:
        # what is a little too large is rounded down
        self.default_sample_size = 1.001 * math.sqrt(height * width) / self.vae_scale_factor
        return call(self, *given, height=height, width=width, **named)

    monkeypatch.setattr(HiDreamImagePipeline, "__call__", sized)
    return {}


FAMILIES = {"HI_DREAM_FULL": write}
PIPELINE_PARTS = dict.fromkeys(FAMILIES, sized_as_asked)
PIPELINE = dict.fromkeys(FAMILIES, _pipeline)
