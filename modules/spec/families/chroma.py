"""Chroma1: FLUX.1 schnell without CLIP and without embedded guidance."""

from __future__ import annotations

from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import (
    STREAM_LAYERS,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

CHROMA_1 = FamilySpec(
    key="CHROMA_1",
    blocks=19 + 38,
    label="Chroma1",
    pipeline_class="ChromaPipeline",
    prediction="flow",
    parts=(
        transformer("transformer_chroma", "ChromaTransformer2DModel"),
        t5_encoder("text_encoder", "lora_te"),
        kl_autoencoder(),
        t5_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), STREAM_LAYERS),
    onetrainer_presets={"attn-mlp": "attn,ff"},
    model_architecture="Chroma1",
    default_resolution=1024,
    size_multiple=16,
    key_map="flux",
    output_keys=("t5",),
    embedding_keys=("t5",),
    prompt_tokens=512,
    length_of="text_encoder",
    padding="masked",
    even_steps=True,
    default_steps=35,
    default_cfg=5.0,
    default_sampler="EULER",
    order=60,
)
