"""Stable Diffusion 1.5 and 2.x: one CLIP text encoder and a UNet; epsilon or v-prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.spec.FamilySpec import FamilySpec, Relative
from modules.spec.parts import (
    CLIP_TOKENS,
    TEXT_PREFIX,
    UNET_PREFIX,
    UNET_PRESETS,
    VAE_PREFIX,
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    unet,
)

_READS_PROMPTS = (
    "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight",
)
"""The first layer of a UNet that reads the prompt, in files and in diffusers; as wide as the text encoder."""
_WIDTH = "cross_attention_dim"


STABLE_DIFFUSION_15 = FamilySpec(
    key="STABLE_DIFFUSION_15",
    label="Stable Diffusion 1.5",
    pipeline_class="StableDiffusionPipeline",
    prediction="epsilon",
    parts=(
        unet(UNET_PREFIX),
        clip_encoder("text_encoder", "lora_te", "clip_l", file_prefix=TEXT_PREFIX),
        kl_autoencoder(VAE_PREFIX),
        clip_tokenizer(),
        scheduler(),
    ),
    layer_presets=UNET_PRESETS,
    model_architecture="stable-diffusion-v1",
    denoiser_channels=4,
    prompt_weighting=True,
    chunks_prompts=True,
    embedding_keys=("clip_l",),
    output_keys=("clip_l",),
    skips_layers_of=("text_encoder",),
    prompt_tokens=CLIP_TOKENS,
    default_resolution=512,
    size_multiple=8,
    key_map="latent_diffusion",
    kohya_original=False,
    writes_single_file=True,
    relatives=(
        Relative(
            "Stable Diffusion 2.x", _READS_PROMPTS, 1024, _WIDTH, "STABLE_DIFFUSION_21 or another of 2.x"
        ),
        Relative("Stable Diffusion XL", _READS_PROMPTS, 2048, _WIDTH, "STABLE_DIFFUSION_XL_10_BASE"),
        Relative("the refiner of Stable Diffusion XL", _READS_PROMPTS, 1280, _WIDTH),
    ),
    order=10,
)

STABLE_DIFFUSION_15_INPAINTING = STABLE_DIFFUSION_15.for_inpainting(
    "STABLE_DIFFUSION_15_INPAINTING", "Stable Diffusion 1.5 inpainting", "StableDiffusionInpaintPipeline"
)


def _second_generation(key: str, label: str, pixels: int, other: str) -> FamilySpec:
    """SD 2.x: another text encoder and, at 768 pixels, v-prediction; both come with the model's configs."""
    changed: dict[str, dict[str, Any]] = {
        "text_encoder": {
            "comfy_name": "clip_h",
            "file_prefix": "cond_stage_model.model.",
            "open_clip": True,
        },
        "tokenizer": {"pad_token": "!"},
    }
    architecture = "stable-diffusion-v2-768-v" if pixels == 768 else "stable-diffusion-v2-512"
    return replace(
        STABLE_DIFFUSION_15,
        key=key,
        label=label,
        prediction="v_prediction" if pixels == 768 else "epsilon",
        model_architecture=architecture,
        parts=tuple(replace(part, **changed.get(part.kind, {})) for part in STABLE_DIFFUSION_15.parts),
        default_resolution=pixels,
        writes_single_file=False,
        lora_metadata={"ss_v2": "True"},
        other_prediction=other,
        relatives=(
            Relative("Stable Diffusion 1.5", _READS_PROMPTS, 768, _WIDTH, STABLE_DIFFUSION_15.key),
            Relative("Stable Diffusion XL", _READS_PROMPTS, 2048, _WIDTH, "STABLE_DIFFUSION_XL_10_BASE"),
        ),
    )


STABLE_DIFFUSION_20 = _second_generation(
    "STABLE_DIFFUSION_20", "Stable Diffusion 2.0", 768, "STABLE_DIFFUSION_20_BASE"
)

STABLE_DIFFUSION_20_BASE = _second_generation(
    "STABLE_DIFFUSION_20_BASE", "Stable Diffusion 2.0 base", 512, "STABLE_DIFFUSION_20"
)

STABLE_DIFFUSION_20_INPAINTING = STABLE_DIFFUSION_20_BASE.for_inpainting(
    "STABLE_DIFFUSION_20_INPAINTING", "Stable Diffusion 2.0 inpainting", "StableDiffusionInpaintPipeline"
)

STABLE_DIFFUSION_21 = _second_generation(
    "STABLE_DIFFUSION_21", "Stable Diffusion 2.1", 768, "STABLE_DIFFUSION_21_BASE"
)

STABLE_DIFFUSION_21_BASE = _second_generation(
    "STABLE_DIFFUSION_21_BASE", "Stable Diffusion 2.1 base", 512, "STABLE_DIFFUSION_21"
)
