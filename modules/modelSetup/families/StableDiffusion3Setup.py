"""Stable Diffusion 3 and 3.5: two CLIP encoders and T5, a flow-matching transformer, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import clip_states, t5_states
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import (
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

T5_TOKENS = 256


@model_setup
class StableDiffusion3Setup(BaseModelSetup):
    spec = FamilySpec(
        key="STABLE_DIFFUSION_3",
        label="Stable Diffusion 3",
        pipeline_class="StableDiffusion3Pipeline",
        prediction="flow",
        parts=(
            transformer("transformer_sd3", "SD3Transformer2DModel"),
            clip_encoder("text_encoder", "lora_te1", "clip_l", projected=True),
            clip_encoder("text_encoder_2", "lora_te2", "clip_g", projected=True),
            t5_encoder("text_encoder_3", "lora_te3", optional=True),
            kl_autoencoder(),
            clip_tokenizer(),
            clip_tokenizer("tokenizer_2", pad_token="!"),
            t5_tokenizer("tokenizer_3", optional=True),
            scheduler(),
        ),
        layer_presets=block_presets(("attn",), ("ff",)),
        lora_architecture="stable-diffusion-3-medium/lora",
        model_architecture="stable-diffusion-3-medium",
        prompt_weighting=True,
        default_resolution=1024,
        prompt_tokens=T5_TOKENS,
        size_multiple=16,
        key_map="stable-diffusion-3",
        default_steps=28,
        default_cfg=7.0,
        default_sampler="EULER",
    )

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        """The two CLIP states side by side, padded to the width of T5's, which follow along the tokens."""
        parts = model.parts
        first_BLE, first_BE = clip_states(model.module("text_encoder"), parts["tokenizer"], prompts, layer=-2)
        second_BLE, second_BE = clip_states(
            model.module("text_encoder_2"), parts["tokenizer_2"], prompts, layer=-2
        )
        clip_BLE = torch.cat([first_BLE, second_BLE], dim=-1)
        if "text_encoder_3" in parts:
            t5_BLE, _ = t5_states(model.module("text_encoder_3"), parts["tokenizer_3"], prompts, T5_TOKENS)
        else:
            # published to be used without its largest encoder too: its tokens are then all zero
            width = model.denoiser.config.joint_attention_dim  # type: ignore[union-attr]
            t5_BLE = clip_BLE.new_zeros(len(clip_BLE), T5_TOKENS, width)  # type: ignore[arg-type]
        clip_BLE = torch.nn.functional.pad(clip_BLE, (0, t5_BLE.shape[-1] - clip_BLE.shape[-1]))
        return Conditioning(
            {
                "hidden_BLE": torch.cat([clip_BLE, t5_BLE.to(clip_BLE.dtype)], dim=1),
                "pooled_BE": torch.cat([first_BE, second_BE], dim=-1),
            }
        )

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        return model.denoiser(  # type: ignore[no-any-return]
            hidden_states=x_BChw,
            timestep=t_B,
            encoder_hidden_states=cond["hidden_BLE"].to(x_BChw.dtype),
            pooled_projections=cond["pooled_BE"].to(x_BChw.dtype),
            return_dict=False,
        )[0]


@model_setup
class StableDiffusion35Setup(StableDiffusion3Setup):
    """The same parts; size, dual attention and normalised queries come with the model's config."""

    spec = replace(
        StableDiffusion3Setup.spec,
        key="STABLE_DIFFUSION_35",
        label="Stable Diffusion 3.5",
        lora_architecture="stable-diffusion-3.5-large/lora",
        model_architecture="stable-diffusion-3.5-large",
        default_cfg=4.5,
    )
