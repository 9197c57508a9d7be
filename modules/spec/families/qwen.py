"""Qwen-Image: Qwen2.5-VL text encoder, a two-stream flow transformer, an autoencoder made for videos."""

from __future__ import annotations

from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
AFTER_TOKENS = 5
"""Tokens the template puts after a prompt."""

QWEN = FamilySpec(
    key="QWEN",
    label="Qwen-Image",
    pipeline_class="QwenImagePipeline",
    prediction="flow",
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
    lora_architecture="Qwen-Image/lora",
    model_architecture="Qwen-Image",
    default_resolution=1024,
    size_multiple=16,
    shifts_by_size=True,
    even_steps=True,
    prompt_tokens=TOKENS - AFTER_TOKENS,
    default_steps=50,
    default_cfg=4.0,
    default_sampler="EULER",
    order=90,
)
