"""Qwen-Image and Qwen-Image-Edit: Qwen2.5-VL text encoder, a two-stream flow transformer, an autoencoder made for
videos.
"""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import (
    autoencoder,
    language_encoder,
    qwen_processor,
    qwen_tokenizer,
    scheduler,
    transformer,
)

TOKENS = 512
AFTER_TOKENS = 5
"""Tokens the template puts after a prompt."""

QWEN = flow_family(
    key="QWEN",
    label="Qwen-Image",
    pipeline_class="QwenImagePipeline",
    parts=(
        transformer("transformer_qwenimage", "QwenImageTransformer2DModel"),
        language_encoder(
            "qwen25_7b",
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            unread=("model.visual.", "lm_head"),
        ),
        autoencoder("autoencoder_kl_qwenimage", "AutoencoderKLQwenImage"),
        qwen_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), ("img_mlp", "txt_mlp")),
    model_architecture="Qwen-Image",
    shifts_by_size=True,
    prompt_tokens=TOKENS - AFTER_TOKENS,
    template_tokens=AFTER_TOKENS,
    most_tokens=1024,
    default_cfg=4.0,
    output_keys=("qwen",),
    order=90,
)

QWEN_EDIT = replace(
    QWEN,
    key="QWEN_EDIT",
    label="Qwen-Image-Edit",
    pipeline_class="QwenImageEditPipeline",
    parts=(*QWEN.parts, qwen_processor()),
    model_architecture="Qwen-Image-Edit",
    sources=1,
    edits_only=True,
    sees_sources=True,
    output_keys=(),
)

QWEN_EDIT_PLUS = replace(
    QWEN_EDIT,
    key="QWEN_EDIT_PLUS",
    label="Qwen-Image-Edit-Plus",
    pipeline_class="QwenImageEditPlusPipeline",
    model_architecture="Qwen-Image-Edit-Plus",
    sources=3,
    shown_area=384**2,
    default_steps=40,
)
