"""Krea 2: a Qwen3-VL text encoder read at twelve depths, a one-stream flow transformer, Qwen-Image's autoencoder."""

from __future__ import annotations

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
AFTER_TOKENS = 5
"""Tokens the template puts after a prompt."""
LAYERS = tuple(range(2, 36, 3))
"""Layers of the text encoder whose states are read."""
MAX_LAYERS = 64

KREA_2 = flow_family(
    key="KREA_2",
    label="Krea 2",
    pipeline_class="Krea2Pipeline",
    parts=(
        transformer("transformer_krea2", "Krea2Transformer2DModel"),
        language_encoder(
            "qwen3vl_4b",
            "qwen3_vl",
            "Qwen3VLModel",
            unread=(
                "visual.",
                *(f"language_model.layers.{layer}." for layer in range(LAYERS[-1], MAX_LAYERS)),
            ),
        ),
        autoencoder("autoencoder_kl_qwenimage", "AutoencoderKLQwenImage"),
        qwen_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), ("ff",)),
    model_architecture="Krea-2",
    key_map="krea_2",
    shifts_by_size=True,
    prompt_tokens=TOKENS - AFTER_TOKENS,
    template_tokens=AFTER_TOKENS,
    default_steps=28,
    default_cfg=5.5,
    order=95,
)
