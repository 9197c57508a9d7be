"""Chroma1: FLUX.1 schnell without CLIP and without embedded guidance. Prompt padding is masked except for one
token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import grid_positions, pack, unpack
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

SINGLE_INPUTS = 3
"""Image and text tokens, modulation and rotary positions; a library that adds the mask itself passes four."""


@model_setup
class ChromaSetup(BaseModelSetup):
    spec = FAMILIES["CHROMA_1"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        hidden_BLE, mask_BL = self._t5_states(model, "text_encoder", prompts, masked=True)
        # the model was trained to see the first padding token
        length_B1 = mask_BL.sum(dim=1, keepdim=True)
        seen_BL = torch.arange(mask_BL.shape[1], device=mask_BL.device)[None] <= length_B1
        if model.masks_padding is False:
            seen_BL = torch.ones_like(seen_BL)
        cond = Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": seen_BL})
        return self._placed(model, cond, prompts, self.prompt_length(model))

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        image_BLE, hidden_BLE = pack(x_BChw), self.hidden_states(model, cond).to(x_BChw.dtype)
        seen_BL = torch.cat([cond["mask_BL"], cond["mask_BL"].new_ones(image_BLE.shape[:2])], dim=1)
        mask_BL = seen_BL.to(x_BChw.dtype)
        with _masked_checkpoints(model.denoiser, mask_BL):
            out_BLE = model.denoiser(
                hidden_states=image_BLE,
                timestep=(t_B / 1000.0).to(x_BChw.dtype),
                encoder_hidden_states=hidden_BLE,
                txt_ids=torch.zeros(hidden_BLE.shape[1], 3, device=x_BChw.device),
                img_ids=grid_positions(height // 2, width // 2, x_BChw.device),
                attention_mask=mask_BL,
                return_dict=False,
            )[0]
        return unpack(out_BLE, height, width)


@contextmanager
def _masked_checkpoints(denoiser: Any, mask_BL: torch.Tensor) -> Iterator[None]:
    """Pass the mask to recomputed single-stream blocks too. diffusers 0.42 drops it there, so that gradient
    checkpointing would train another model.
    """
    plain = denoiser._gradient_checkpointing_func if denoiser.gradient_checkpointing else None

    def with_mask(block: torch.nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        single = (
            any(block is own for own in denoiser.single_transformer_blocks) and len(inputs) == SINGLE_INPUTS
        )
        return plain(block, *inputs, mask_BL) if single else plain(block, *inputs)  # type: ignore[misc, no-any-return]

    if plain is not None:
        denoiser._gradient_checkpointing_func = with_mask
    try:
        yield
    finally:
        if plain is not None:
            denoiser._gradient_checkpointing_func = plain
