"""Anima: a network puts states of Qwen3 in the places of T5 tokens; the flow transformer of Cosmos Predict2."""

from __future__ import annotations

from modules.spec.FamilySpec import PartSpec, block_presets, flow_family
from modules.spec.parts import (
    autoencoder,
    language_encoder,
    qwen_tokenizer,
    scheduler,
    t5_tokenizer,
    transformer,
)

TOKENS = 512

ANIMA = flow_family(
    key="ANIMA",
    label="Anima",
    pipeline_class="AnimaModularPipeline",
    parts=(
        transformer("transformer_cosmos", "CosmosTransformer3DModel", file_prefix="net."),
        language_encoder("qwen3_06b", "qwen3", "Qwen3Model"),
        PartSpec(
            "text_encoder_2",
            "text_encoder",
            ("AnimaTextConditioner",),
            "diffusers.models.condition_embedders.condition_embedder_anima",
            frozen=True,
            folder="text_conditioner",
            library="diffusers",
            file_prefix="net.llm_adapter.",
            inside="llm_adapter.",
        ),
        autoencoder("autoencoder_kl_qwenimage", "AutoencoderKLQwenImage"),
        qwen_tokenizer(),
        t5_tokenizer("tokenizer_2", folder="t5_tokenizer"),
        scheduler(),
    ),
    layer_presets=block_presets(("attn1", "attn2"), ("ff",)),
    model_architecture="Anima",
    key_map="anima",
    prompt_tokens=TOKENS,
    most_tokens=TOKENS,
    default_cfg=4.0,
    order=96,
)
