"""Qwen-Image 2.1: a Qwen3-VL text encoder read before its last norm, a one-stream flow transformer that sees text
causally, an autoencoder of its own.
"""

from __future__ import annotations

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
TEMPLATE_TOKENS = 8
"""Tokens the template puts around a prompt, without the system message, whose states are dropped."""

QWEN_21 = flow_family(
    key="QWEN_21",
    label="Qwen-Image 2.1",
    pipeline_class="QwenImage21Pipeline",
    parts=(
        transformer("transformer_qwenimage21", "QwenImage21Transformer2DModel"),
        language_encoder(
            "qwen3vl_8b",
            "qwen3_vl",
            "Qwen3VLForConditionalGeneration",
            unread=("model.visual.", "lm_head"),
        ),
        autoencoder("autoencoder_kl_qwenimage21", "AutoencoderKLQwenImage21"),
        qwen_tokenizer("processor"),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), ("img_mlp",)),
    model_architecture="Qwen-Image-2.1",
    key_map="qwen_21",
    blocks=32,
    size_multiple=32,
    shifts_by_size=True,
    prompt_tokens=TOKENS,
    template_tokens=TEMPLATE_TOKENS,
    most_tokens=1024,
    default_steps=40,
    default_cfg=1.0,
    sources=3,
    sees_sources=True,
    keeps_shown=False,
    order=91,
)
