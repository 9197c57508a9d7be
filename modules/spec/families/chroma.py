"""Chroma1: FLUX.1 schnell without CLIP and without embedded guidance."""

from __future__ import annotations

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import (
    STREAM_LAYERS,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

CHROMA_1 = flow_family(
    key="CHROMA_1",
    blocks=19 + 38,
    label="Chroma1",
    pipeline_class="ChromaPipeline",
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
    key_map="flux",
    output_keys=("t5",),
    embedding_keys=("t5",),
    prompt_tokens=512,
    padding="masked",
    default_steps=35,
    default_cfg=5.0,
    order=60,
)
