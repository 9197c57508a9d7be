"""Lumina 2: Gemma 2 text encoder, a single-stream flow transformer over text and image, FLUX.1's autoencoder."""

from __future__ import annotations

from modules.spec.FamilySpec import PartSpec, block_presets, flow_family
from modules.spec.parts import kl_autoencoder, language_encoder, scheduler, transformer

TOKENS = 256
INSTRUCTION_TOKENS = 30
"""Tokens that the instruction before a prompt takes, one for each of its words and marks."""

LUMINA_2 = flow_family(
    key="LUMINA_2",
    label="Lumina 2",
    pipeline_class="Lumina2Pipeline",
    parts=(
        transformer("transformer_lumina2", "Lumina2Transformer2DModel"),
        language_encoder("gemma2_2b", "gemma2", "Gemma2Model", "Gemma2ForCausalLM"),
        kl_autoencoder(),
        PartSpec(
            "tokenizer",
            "tokenizer",
            ("GemmaTokenizerFast", "GemmaTokenizer"),
            "transformers.models.gemma",
        ),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), ("feed_forward",), ("layers.", "refiner.")),
    model_architecture="lumina-2",
    key_map="lumina_2",
    prompt_tokens=TOKENS - INSTRUCTION_TOKENS,
    template_tokens=INSTRUCTION_TOKENS,
    most_tokens=TOKENS,
    default_steps=30,
    default_cfg=4.0,
    order=55,
)
