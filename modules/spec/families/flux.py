"""FLUX.1: CLIP and T5 text encoders, a flow transformer of two streams and of one."""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import Relative, block_presets, flow_family
from modules.spec.parts import (
    STREAM_LAYERS,
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

_INPUTS = ("img_in.weight", "x_embedder.weight")

FLUX_DEV_1 = flow_family(
    key="FLUX_DEV_1",
    label="FLUX.1 dev",
    pipeline_class="FluxPipeline",
    parts=(
        transformer("transformer_flux", "FluxTransformer2DModel"),
        clip_encoder("text_encoder", "lora_te1", "clip_l"),
        t5_encoder("text_encoder_2", "lora_te2"),
        kl_autoencoder(),
        clip_tokenizer(),
        t5_tokenizer("tokenizer_2"),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), STREAM_LAYERS),
    onetrainer_presets={"attn-mlp": "attn,ff"},
    model_architecture="Flux.1-dev",
    prompt_weighting=True,
    output_keys=("", "t5"),
    embedding_keys=("clip_l", "t5"),
    prompt_tokens=512,
    length_of="text_encoder_2",
    padding="seen",
    key_map="flux",
    blocks=19 + 38,
    embeds_guidance=True,
    shifts_by_size=True,
    default_steps=28,
    default_cfg=3.5,
    relatives=(
        Relative("FLUX.1 Fill", _INPUTS, 384, "in_channels"),
        Relative("FLUX.1 Canny or Depth", _INPUTS, 128, "in_channels"),
    ),
    order=70,
)

FLUX_SCHNELL_1 = replace(
    FLUX_DEV_1,
    key="FLUX_SCHNELL_1",
    label="FLUX.1 schnell",
    model_architecture="Flux.1-schnell",
    embeds_guidance=False,
    prompt_tokens=256,
    default_steps=4,
    default_cfg=1.0,
)

FLUX_KONTEXT_DEV_1 = replace(
    FLUX_DEV_1,
    key="FLUX_KONTEXT_DEV_1",
    label="FLUX.1 Kontext dev",
    pipeline_class="FluxKontextPipeline",
    model_architecture="Flux.1-kontext-dev",
    sources=1,
    edits_only=True,
)
