"""FLUX.1: CLIP and T5 text encoders, a flow-matching transformer with rotary positions, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import grid_positions, pack, unpack
from modules.model.text.encoding import clip_states, t5_states
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES


@model_setup
class FluxSetup(BaseModelSetup):
    spec = FAMILIES["FLUX_DEV_1"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        parts = model.parts
        _, pooled_BE = clip_states(model.module("text_encoder"), parts["tokenizer"], prompts)
        hidden_BLE, _ = t5_states(
            model.module("text_encoder_2"), parts["tokenizer_2"], prompts, self.spec.prompt_tokens
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

    spec = FAMILIES["FLUX_SCHNELL_1"]
