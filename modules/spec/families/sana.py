"""Sana: Gemma 2 text encoder, a linear-attention flow transformer, an autoencoder that shrinks images 32 times."""

from __future__ import annotations

from modules.spec.FamilySpec import PartSpec, block_presets, flow_family
from modules.spec.parts import autoencoder, language_encoder, scheduler, transformer

SANA = flow_family(
    key="SANA",
    label="Sana",
    pipeline_class="SanaPipeline",
    parts=(
        transformer("sana_transformer", "SanaTransformer2DModel"),
        language_encoder("gemma2_2b", "gemma2", "Gemma2Model", "Gemma2ForCausalLM"),
        autoencoder("autoencoder_dc", "AutoencoderDC"),
        PartSpec(
            "tokenizer",
            "tokenizer",
            ("GemmaTokenizerFast", "GemmaTokenizer"),
            "transformers.models.gemma",
        ),
        scheduler(),
    ),
    layer_presets=block_presets(("attn1", "attn2"), ("ff",)),
    model_architecture="sana",
    size_multiple=32,
    key_map="sana",
    output_keys=("gemma",),
    embedding_keys=("gemma",),
    even_steps=False,
    prompt_tokens=300,
    padding="masked",
    default_steps=20,
    default_cfg=4.5,
    default_sampler="DPMPP",
    order=50,
)
