"""FLUX.1: CLIP and T5 text encoders, a flow-matching transformer with rotary positions, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import grid_positions, pack, unpack
from modules.model.text.encoding import clip_states, t5_states
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import (
    STREAM_LAYERS,
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

T5_TOKENS, SCHNELL_T5_TOKENS = 512, 256


@model_setup
class FluxSetup(BaseModelSetup):
    t5_tokens = T5_TOKENS
    spec = FamilySpec(
        key="FLUX_DEV_1",
        label="FLUX.1 dev",
        pipeline_class="FluxPipeline",
        prediction="flow",
        parts=(
            transformer("transformer_flux", "FluxTransformer2DModel"),
            clip_encoder("text_encoder", "lora_te1", "clip_l"),
            t5_encoder("text_encoder_2", "lora_te2"),
            kl_autoencoder(),
            clip_tokenizer(),
            t5_tokenizer("tokenizer_2"),
            scheduler(),
        ),
        layer_presets=block_presets(("attn",), STREAM_LAYERS),
        lora_architecture="Flux.1-dev/lora",
        model_architecture="Flux.1-dev",
        prompt_weighting=True,
        default_resolution=1024,
        prompt_tokens=T5_TOKENS,
        size_multiple=16,
        key_map="flux",
        embeds_guidance=True,
        even_steps=True,
        default_steps=28,
        default_cfg=3.5,
        default_sampler="EULER",
    )

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        parts = model.parts
        _, pooled_BE = clip_states(model.module("text_encoder"), parts["tokenizer"], prompts)
        hidden_BLE, _ = t5_states(
            model.module("text_encoder_2"), parts["tokenizer_2"], prompts, self.t5_tokens
        )
        return Conditioning({"hidden_BLE": hidden_BLE, "pooled_BE": pooled_BE})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        guidance_B = None
        if model.denoiser.config.guidance_embeds:  # type: ignore[union-attr]
            guidance_B = cond.tensors.get("guidance_B")
            if guidance_B is None:
                guidance_B = torch.full_like(t_B, model.guidance, dtype=torch.float32)
        out_BLE = model.denoiser(
            hidden_states=pack(x_BChw),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            guidance=guidance_B,
            pooled_projections=cond["pooled_BE"].to(x_BChw.dtype),
            encoder_hidden_states=hidden_BLE,
            txt_ids=torch.zeros(hidden_BLE.shape[1], 3, device=x_BChw.device),
            img_ids=grid_positions(height // 2, width // 2, x_BChw.device),
            return_dict=False,
        )[0]
        return unpack(out_BLE, height, width)


@model_setup
class FluxSchnellSetup(FluxSetup):
    """The step-distilled model, made for shorter prompts; without a guidance input, so that guidance above 1 takes a
    second pass.
    """

    t5_tokens = SCHNELL_T5_TOKENS
    spec = replace(
        FluxSetup.spec,
        key="FLUX_SCHNELL_1",
        label="FLUX.1 schnell",
        lora_architecture="Flux.1-schnell/lora",
        model_architecture="Flux.1-schnell",
        embeds_guidance=False,
        prompt_tokens=SCHNELL_T5_TOKENS,
        default_steps=4,
        default_cfg=1.0,
    )
