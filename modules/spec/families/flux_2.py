"""FLUX.2: a language model read at three depths, a flow transformer. Klein reads with Qwen3, dev with Mistral 3."""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import Relative, block_presets, flow_family
from modules.spec.parts import (
    autoencoder,
    language_encoder,
    mistral_tokenizer,
    qwen_tokenizer,
    scheduler,
    transformer,
)

TOKENS = 512
TEMPLATE_TOKENS = 12
"""Tokens of the chat template around a prompt, with thinking that ends immediately."""
LAYERS = (9, 18, 27)
"""Layers of the text encoder whose states are read."""
MAX_LAYERS = 64
SOURCES = 3
"""Maximum number of source images; the model has no limit of its own."""
WIDTH_OF_9B = 4096
"""Hidden width of the text encoder of klein 9B."""
DEV_TEMPLATE_TOKENS = 32
"""Tokens that the template of dev puts around a prompt, one for each of its words and marks."""
DEV_LAYERS = (10, 20, 30)
"""Layers of the text encoder of dev whose states are read."""
_TEXT = ("txt_in.weight", "context_embedder.weight")
_TEXT_WIDTH = "joint_attention_dim"

FLUX_2 = flow_family(
    key="FLUX_2",
    label="FLUX.2 klein",
    pipeline_class="Flux2KleinPipeline",
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
    model_architecture="Flux.2",
    key_map="flux_2",
    sources=SOURCES,
    shifts_by_size=True,
    prompt_tokens=TOKENS - TEMPLATE_TOKENS,
    template_tokens=TEMPLATE_TOKENS,
    most_tokens=1024,
    padding="seen",
    default_cfg=4.0,
    relatives=(Relative("FLUX.2 dev", _TEXT, 15360, _TEXT_WIDTH, "FLUX_2_DEV"),),
    output_keys=("qwen",),
    output_layers=len(LAYERS),
    order=100,
)

FLUX_2_DEV = replace(
    FLUX_2,
    key="FLUX_2_DEV",
    label="FLUX.2 dev",
    pipeline_class="Flux2Pipeline",
    parts=(
        FLUX_2.part("transformer"),
        language_encoder(
            "mistral3_24b",
            "mistral3",
            "Mistral3ForConditionalGeneration",
            unread=(
                "lm_head",
                "model.vision_tower.",
                "model.multi_modal_projector.",
                *(f"model.language_model.layers.{layer}." for layer in range(DEV_LAYERS[-1], MAX_LAYERS)),
            ),
        ),
        FLUX_2.part("vae"),
        mistral_tokenizer(),
        scheduler(),
    ),
    onetrainer_type="FLUX_2",
    model_architecture="Flux.2-dev",
    prompt_tokens=TOKENS - DEV_TEMPLATE_TOKENS,
    template_tokens=DEV_TEMPLATE_TOKENS,
    embeds_guidance=True,
    output_keys=("mistral",),
    output_layers=len(DEV_LAYERS),
    relatives=(
        Relative("FLUX.2 klein 4B", _TEXT, 7680, _TEXT_WIDTH, "FLUX_2"),
        Relative("FLUX.2 klein 9B", _TEXT, 12288, _TEXT_WIDTH, "FLUX_2"),
    ),
)
