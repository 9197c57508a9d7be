"""Z-Image: Qwen3 text encoder, a single-stream flow transformer over image and text."""

from __future__ import annotations

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import kl_autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
TEMPLATE_TOKENS = 8
"""Tokens the chat template puts around a prompt."""

Z_IMAGE = flow_family(
    key="Z_IMAGE",
    label="Z-Image",
    pipeline_class="ZImagePipeline",
    parts=(
        transformer("transformer_z_image", "ZImageTransformer2DModel"),
        language_encoder("qwen3_4b", "qwen3", "Qwen3Model", "Qwen3ForCausalLM"),
        kl_autoencoder(),
        qwen_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attention",), ("feed_forward",), ("layers.", "refiner.")),
    onetrainer_presets={
        "attn-mlp": "^(?=.*attention)(?!.*refiner).*,^(?=.*feed_forward)(?!.*refiner).*",
        "attn-only": "^(?=.*attention)(?!.*refiner).*",
        "blocks": "layers",
    },
    model_architecture="Z-Image",
    key_map="z_image",
    shifts_by_size=True,
    prompt_tokens=TOKENS - TEMPLATE_TOKENS,
    template_tokens=TEMPLATE_TOKENS,
    default_cfg=5.0,
    output_keys=("qwen",),
    order=80,
)
