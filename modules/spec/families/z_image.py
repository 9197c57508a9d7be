"""Z-Image: Qwen3 text encoder, a single-stream flow transformer over image and text."""

from __future__ import annotations

from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import kl_autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
TEMPLATE_TOKENS = 8
"""Tokens the chat template puts around a prompt."""

Z_IMAGE = FamilySpec(
    key="Z_IMAGE",
    label="Z-Image",
    pipeline_class="ZImagePipeline",
    prediction="flow",
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
    default_resolution=1024,
    size_multiple=16,
    key_map="z-image",
    shifts_by_size=True,
    even_steps=True,
    prompt_tokens=TOKENS - TEMPLATE_TOKENS,
    template_tokens=TEMPLATE_TOKENS,
    length_of="text_encoder",
    default_steps=50,
    default_cfg=5.0,
    default_sampler="EULER",
    output_keys=("qwen",),
    order=80,
)
