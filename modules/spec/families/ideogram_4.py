"""Ideogram 4: Qwen3-VL read at thirteen depths, a one-stream flow transformer and a second one without prompts for
guidance, FLUX.2's autoencoder.
"""

from __future__ import annotations

from dataclasses import replace

from modules.spec.FamilySpec import block_presets, flow_family
from modules.spec.parts import autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TEMPLATE_TOKENS = 8
"""Tokens the chat template puts around a prompt."""
TOKENS = 512
MOST_TOKENS = 2048
LAYERS = (*range(0, 36, 3), 35)
"""Layers of the text encoder whose results are read, counted from 0."""

_DENOISER = transformer("transformer_ideogram4", "Ideogram4Transformer2DModel")

IDEOGRAM_4 = flow_family(
    key="IDEOGRAM_4",
    label="Ideogram 4",
    pipeline_class="Ideogram4Pipeline",
    parts=(
        _DENOISER,
        replace(_DENOISER, name="unconditional_transformer", kind="guide", optional=True, kohya_prefix=""),
        language_encoder("qwen3vl_8b", "qwen3_vl", "Qwen3VLModel", unread=("visual.",)),
        autoencoder("autoencoder_kl_flux2", "AutoencoderKLFlux2"),
        qwen_tokenizer(),
        scheduler(),
    ),
    layer_presets=block_presets(("attention",), ("feed_forward",), ("layers.",)),
    model_architecture="Ideogram",
    key_map="ideogram_4",
    blocks=34,
    shifts_by_size=True,
    even_steps=False,
    prompt_tokens=TOKENS - TEMPLATE_TOKENS,
    template_tokens=TEMPLATE_TOKENS,
    most_tokens=MOST_TOKENS,
    default_steps=48,
    default_cfg=7.0,
    order=97,
)
