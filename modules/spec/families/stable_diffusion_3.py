"""Stable Diffusion 3 and 3.5: two CLIP encoders and T5, a flow transformer."""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import (
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

STABLE_DIFFUSION_3 = flow_family(
    key="STABLE_DIFFUSION_3",
    blocks=24,
    skips_layers_of=("text_encoder", "text_encoder_2"),
    label="Stable Diffusion 3",
    pipeline_class="StableDiffusion3Pipeline",
    parts=(
        transformer("transformer_sd3", "SD3Transformer2DModel"),
        clip_encoder("text_encoder", "lora_te1", "clip_l", projected=True),
        clip_encoder("text_encoder_2", "lora_te2", "clip_g", projected=True),
        t5_encoder("text_encoder_3", "lora_te3", optional=True),
        kl_autoencoder(),
        clip_tokenizer(),
        clip_tokenizer("tokenizer_2", pad_token="!"),
        t5_tokenizer("tokenizer_3", optional=True),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), ("ff",)),
    model_architecture="stable-diffusion-3-medium",
    prompt_weighting=True,
    embedding_keys=("clip_l", "clip_g", "t5"),
    output_keys=("clip_l", "clip_g", "t5"),
    even_steps=False,
    prompt_tokens=256,
    length_of="text_encoder_3",
    padding="seen",
    key_map="stable_diffusion_3",
    default_steps=28,
    default_cfg=7.0,
    order=30,
)

STABLE_DIFFUSION_35 = replace(
    STABLE_DIFFUSION_3,
    key="STABLE_DIFFUSION_35",
    blocks=0,
    label="Stable Diffusion 3.5",
    model_architecture="stable-diffusion-3.5-large",
    default_cfg=4.5,
)
