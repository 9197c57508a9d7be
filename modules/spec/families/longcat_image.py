"""LongCat-Image and LongCat-Image-Edit: Qwen2.5-VL text encoder, a flow transformer of two streams and of one,
FLUX.1's autoencoder.
"""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import (
    STREAM_LAYERS,
    kl_autoencoder,
    language_encoder,
    qwen_processor,
    qwen_tokenizer,
    scheduler,
    transformer,
)

TOKENS = 512

LONGCAT_IMAGE = flow_family(
    key="LONGCAT_IMAGE",
    label="LongCat-Image",
    pipeline_class="LongCatImagePipeline",
    parts=(
        transformer("transformer_longcat_image", "LongCatImageTransformer2DModel"),
        language_encoder(
            "qwen25_7b",
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            unread=("model.visual.", "lm_head"),
        ),
        kl_autoencoder(),
        qwen_tokenizer(),
        qwen_processor("text_processor"),
        scheduler(),
    ),
    layer_presets=block_presets(("attn",), STREAM_LAYERS),
    model_architecture="LongCat-Image",
    key_map="longcat_image",
    blocks=10 + 20,
    shifts_by_size=True,
    prompt_tokens=TOKENS,
    most_tokens=TOKENS,
    padding="seen",
    default_cfg=4.5,
    order=95,
)

LONGCAT_IMAGE_EDIT = replace(
    LONGCAT_IMAGE,
    key="LONGCAT_IMAGE_EDIT",
    label="LongCat-Image-Edit",
    pipeline_class="LongCatImageEditPipeline",
    model_architecture="LongCat-Image-Edit",
    sources=1,
    edits_only=True,
    sees_sources=True,
    shown_side=0.5,
)
