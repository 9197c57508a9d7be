"""FLUX.1: CLIP and T5 text encoders, a flow-matching transformer with rotary positions, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import grid_positions, pack, unpack
from modules.model.text.encoding import clip_states
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES


@model_setup
class FluxSetup(BaseModelSetup):
    spec = FAMILIES["FLUX_DEV_1"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        _, pooled_BE = clip_states(model.module("text_encoder"), tokenizer, prompts, added=added)
        hidden_BLE, mask_BL = self._t5_states(model, "text_encoder_2", prompts)
        if model.masks_padding:
            hidden_BLE = hidden_BLE.masked_fill(~mask_BL[..., None], 0.0)
        cond = Conditioning({"hidden_BLE": hidden_BLE, "pooled_BE": pooled_BE})
        return self._placed(model, cond, prompts, self.prompt_length(model))

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        tokens_BLE, positions_L3 = _tokens(x_BChw, cond)
        hidden_BLE = self.hidden_states(model, cond).to(x_BChw.dtype)
        guidance_B = None
        if model.denoiser.config.guidance_embeds:  # type: ignore[union-attr]
            guidance_B = cond.tensors.get("guidance_B")
            if guidance_B is None:
                guidance_B = torch.full_like(t_B, model.guidance, dtype=torch.float32)
        out_BLE = model.denoiser(
            hidden_states=tokens_BLE,
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            guidance=guidance_B,
            pooled_projections=cond["pooled_BE"].to(x_BChw.dtype),
            encoder_hidden_states=hidden_BLE,
            txt_ids=torch.zeros(hidden_BLE.shape[1], 3, device=x_BChw.device),
            img_ids=positions_L3,
            return_dict=False,
        )[0]
        # its output for the sources is ignored
        return unpack(out_BLE[:, : height * width // 4], height, width)


def _tokens(x_BChw: torch.Tensor, cond: Conditioning) -> tuple[torch.Tensor, torch.Tensor]:
    """The patches of the noisy latents followed by those of the sources, and the positions of all.

    The first axis of the positions numbers the images (Batifol et al. 2025, arXiv 2506.15742, section 3.1).
    """
    tokens, positions = [], []
    for number, image_BChw in enumerate([x_BChw, *cond.sources]):
        height, width = image_BChw.shape[-2:]
        tokens.append(pack(image_BChw.to(x_BChw.dtype)))
        ids_L3 = grid_positions(height // 2, width // 2, x_BChw.device)
        ids_L3[:, 0] = number
        positions.append(ids_L3)
    return torch.cat(tokens, dim=1), torch.cat(positions)


@model_setup
class FluxSchnellSetup(FluxSetup):
    """The step-distilled model, made for shorter prompts. It has no guidance input, so that guidance above 1
    needs a second pass.
    """

    spec = FAMILIES["FLUX_SCHNELL_1"]


@model_setup
class FluxKontextSetup(FluxSetup):
    """The model that edits an image according to the prompt."""

    spec = FAMILIES["FLUX_KONTEXT_DEV_1"]
