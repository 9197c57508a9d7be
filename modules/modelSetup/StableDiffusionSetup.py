"""Stable Diffusion with the layout of 1.5: CLIP text encoder, UNet, KL autoencoder; epsilon or v."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from modules.model.batch import OWN, Conditioning
from modules.model.dtypes import PartDtypes
from modules.model.ldm_keys import TEXT_PREFIX, UNET_PREFIX, VAE_PREFIX
from modules.model.Model import Model
from modules.model.text.chunks import ClipReader
from modules.model.text.encoding import CLIP_TOKENS
from modules.modelSetup.ChunkedPrompts import ChunkedPrompts
from modules.modelSetup.Inpainting import Inpainting, inpainting_spec
from modules.modelSetup.registry import model_setup
from modules.spec.FamilySpec import FamilySpec
from modules.spec.parts import clip_encoder, clip_tokenizer, kl_autoencoder, scheduler, unet
from modules.weights.part_sources import Sources
from modules.weights.single_file import Unsaid, load_single_file


@model_setup
class StableDiffusionSetup(ChunkedPrompts):
    spec = FamilySpec(
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
        layer_presets={
            "attn-mlp": ("attentions",),
            "attn-only": ("attn1", "attn2"),
            "blocks": ("down_blocks", "mid_block", "up_blocks"),
            "full": (),
        },
        lora_architecture="stable-diffusion-v1/lora",
        model_architecture="stable-diffusion-v1",
        denoiser_channels=4,
        prompt_weighting=True,
        chunks_prompts=True,
        prompt_tokens=CLIP_TOKENS,
        default_resolution=512,
        size_multiple=8,
        key_map="latent-diffusion",
        kohya_original=False,
        writes_single_file=True,
    )

    def _load_rest(self, sources: Sources, dtypes: PartDtypes, wanted: Sequence[str]) -> dict[str, Any]:
        if sources.base.is_dir() or not self.spec.writes_single_file:
            return super()._load_rest(sources, dtypes, wanted)
        return load_single_file(sources.base, self.spec, wanted, dtypes, Unsaid())

    def _readers(self, model: Model) -> list[ClipReader]:
        return [ClipReader(model.module("text_encoder"), model.parts["tokenizer"])]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        return self._states(model, prompts)[0]

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        return model.denoiser(  # type: ignore[no-any-return]
            x_BChw,
            t_B,
            encoder_hidden_states=hidden_BLE,
            encoder_attention_mask=cond.tensors.get(OWN),
            return_dict=False,
        )[0]


def _second_generation(key: str, label: str, pixels: int) -> FamilySpec:
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
        StableDiffusionSetup.spec,
        key=key,
        label=label,
        prediction="v_prediction" if pixels == 768 else "epsilon",
        lora_architecture=f"{architecture}/lora",
        model_architecture=architecture,
        parts=tuple(replace(part, **changed.get(part.kind, {})) for part in StableDiffusionSetup.spec.parts),
        default_resolution=pixels,
        writes_single_file=False,
        lora_metadata={"ss_v2": "True"},
    )


@model_setup
class StableDiffusion20Setup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_20", "Stable Diffusion 2.0", 768)


@model_setup
class StableDiffusion20BaseSetup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_20_BASE", "Stable Diffusion 2.0 base", 512)


@model_setup
class StableDiffusion21Setup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_21", "Stable Diffusion 2.1", 768)


@model_setup
class StableDiffusion21BaseSetup(StableDiffusionSetup):
    spec = _second_generation("STABLE_DIFFUSION_21_BASE", "Stable Diffusion 2.1 base", 512)


@model_setup
class StableDiffusion15InpaintingSetup(Inpainting, StableDiffusionSetup):
    spec = inpainting_spec(
        StableDiffusionSetup.spec,
        "STABLE_DIFFUSION_15_INPAINTING",
        "Stable Diffusion 1.5 inpainting",
        "StableDiffusionInpaintPipeline",
    )


@model_setup
class StableDiffusion20InpaintingSetup(Inpainting, StableDiffusionSetup):
    spec = inpainting_spec(
        StableDiffusion20BaseSetup.spec,
        "STABLE_DIFFUSION_20_INPAINTING",
        "Stable Diffusion 2.0 inpainting",
        "StableDiffusionInpaintPipeline",
    )
