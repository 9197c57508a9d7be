"""PixArt: T5 text encoder, a diffusion transformer with cross-attention, epsilon prediction."""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import kl_autoencoder, scheduler, t5_encoder, t5_tokenizer, transformer

PIXART_ALPHA = FamilySpec(
    key="PIXART_ALPHA",
    label="PixArt alpha",
    pipeline_class="PixArtAlphaPipeline",
    prediction="epsilon",
    parts=(
        transformer("pixart_transformer_2d", "PixArtTransformer2DModel", "Transformer2DModel"),
        t5_encoder("text_encoder", "lora_te"),
        kl_autoencoder(),
        t5_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attn1", "attn2"), ("ff",)),
    model_architecture="pixart-alpha",
    default_resolution=1024,
    size_multiple=16,
    key_map="pixart",
    output_keys=("t5",),
    predicts_variance=True,
    embedding_keys=("t5",),
    prompt_tokens=120,
    length_of="text_encoder",
    padding="masked",
    default_steps=20,
    default_cfg=4.5,
    default_sampler="DPMPP",
    order=40,
)

PIXART_SIGMA = replace(
    PIXART_ALPHA,
    key="PIXART_SIGMA",
    label="PixArt Sigma",
    pipeline_class="PixArtSigmaPipeline",
    model_architecture="pixart-sigma",
    prompt_tokens=300,
)
