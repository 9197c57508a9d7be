"""Stable Diffusion XL: two CLIP text encoders, a UNet that is told the size and crop of its images."""

from __future__ import annotations

from modules.spec.FamilySpec import FamilySpec, Relative
from modules.spec.parts import (
    CLIP_TOKENS,
    UNET_PREFIX,
    UNET_PRESETS,
    VAE_PREFIX,
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    unet,
)

STABLE_DIFFUSION_XL_10_BASE = FamilySpec(
    key="STABLE_DIFFUSION_XL_10_BASE",
    label="Stable Diffusion XL",
    pipeline_class="StableDiffusionXLPipeline",
    prediction="epsilon",
    parts=(
        unet(UNET_PREFIX),
        clip_encoder(
            "text_encoder",
            "lora_te1",
            "clip_l",
            file_prefix="conditioner.embedders.0.transformer.text_model.",
        ),
        clip_encoder(
            "text_encoder_2",
            "lora_te2",
            "clip_g",
            projected=True,
            file_prefix="conditioner.embedders.1.model.",
            open_clip=True,
        ),
        kl_autoencoder(VAE_PREFIX),
        clip_tokenizer(),
        clip_tokenizer("tokenizer_2", pad_token="!"),
        scheduler(),
    ),
    layer_presets=UNET_PRESETS,
    model_architecture="stable-diffusion-xl-v1-base",
    lora_metadata={"ss_base_model_version": "sdxl_"},
    denoiser_channels=4,
    prompt_weighting=True,
    chunks_prompts=True,
    embedding_keys=("clip_l", "clip_g"),
    output_keys=("clip_l", "clip_g"),
    skips_layers_of=("text_encoder", "text_encoder_2"),
    prompt_tokens=CLIP_TOKENS,
    default_resolution=1024,
    size_multiple=8,
    writes_single_file=True,
    key_map="latent_diffusion",
    size_conditioning=True,
    default_steps=30,
    default_cfg=5.0,
    default_sampler="EULER",
    relatives=(
        Relative(
            "the refiner of Stable Diffusion XL",
            ("label_emb.0.0.weight", "add_embedding.linear_1.weight"),
            2560,
            "projection_class_embeddings_input_dim",
        ),
    ),
    order=20,
)

STABLE_DIFFUSION_XL_10_BASE_INPAINTING = STABLE_DIFFUSION_XL_10_BASE.for_inpainting(
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING",
    "Stable Diffusion XL inpainting",
    "StableDiffusionXLInpaintPipeline",
)
