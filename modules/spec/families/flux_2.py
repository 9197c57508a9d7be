"""FLUX.2 klein: a Qwen3 text encoder read at three depths, a flow transformer."""

from __future__ import annotations

from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
TEMPLATE_TOKENS = 12
"""Tokens the chat template puts around a prompt, with thinking that ends at once."""
LAYERS = (9, 18, 27)
"""Layers of the text encoder whose states are read."""
MAX_LAYERS = 64
SOURCES = 3
"""Images to edit that are offered; the model has no limit of its own."""
WIDTH_OF_9B = 4096
"""Hidden width of the text encoder of klein 9B."""

FLUX_2 = FamilySpec(
    key="FLUX_2",
    label="FLUX.2 klein",
    pipeline_class="Flux2KleinPipeline",
    prediction="flow",
    parts=(
        transformer("transformer_flux2", "Flux2Transformer2DModel"),
        language_encoder(
            "qwen3_4b",
            "qwen3",
            "Qwen3ForCausalLM",
            unread=("lm_head", *(f"model.layers.{layer}." for layer in range(LAYERS[-1], MAX_LAYERS))),
            comfy_sizes=((WIDTH_OF_9B, "qwen3_8b"),),
        ),
        autoencoder("autoencoder_kl_flux2", "AutoencoderKLFlux2"),
        qwen_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), ("ff",)),
    lora_architecture="Flux.2/lora",
    model_architecture="Flux.2",
    key_map="flux-2",
    sources=SOURCES,
    default_resolution=1024,
    size_multiple=16,
    shifts_by_size=True,
    even_steps=True,
    prompt_tokens=TOKENS - TEMPLATE_TOKENS,
    template_tokens=TEMPLATE_TOKENS,
    length_of="text_encoder",
    most_tokens=1024,
    padding="seen",
    default_steps=50,
    default_cfg=4.0,
    default_sampler="EULER",
    order=100,
)
