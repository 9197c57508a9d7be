"""Anima: Qwen3 encodes the prompt, T5 tokens give positions; the denoiser of Cosmos Predict2 makes a video of
one frame.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import states_of, tokenize
from modules.modelSetup.QwenAutoencoder import QwenAutoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

COSMOS = "diffusers.models.transformers.transformer_cosmos"


@model_setup
class AnimaSetup(QwenAutoencoder):
    """The network between both tokenizers (``text_encoder_2``) is never trained, so that its states can be cached."""

    spec = FAMILIES["ANIMA"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        encoder, conditioner = (model.module(name) for name in ("text_encoder", "text_encoder_2"))
        limit = self.prompt_length(model)
        ids_BL, mask_BL = tokenize(
            model.parts["tokenizer"], prompts, encoder, limit, side="right", fill=False
        )
        if not ids_BL.shape[1]:
            # the empty prompt has no tokens, and an encoder needs one
            ids_BL, mask_BL = ids_BL.new_zeros(len(prompts), 1), mask_BL.new_zeros(len(prompts), 1)
        states_BLE = states_of(encoder, ids_BL, mask_BL, layers=(-1,)) * mask_BL[..., None]
        places_BL, there_BL = tokenize(
            model.parts["tokenizer_2"], prompts, conditioner, limit, side="right", fill=False
        )
        weight = next(conditioner.parameters())
        hidden_BLE = conditioner(
            source_hidden_states=states_BLE.to(weight.device, weight.dtype),
            target_input_ids=places_BL,
            target_attention_mask=there_BL,
            source_attention_mask=mask_BL.to(weight.device),
        )
        return Conditioning({"hidden_BLE": hidden_BLE})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        _resize_without_torchvision()
        out_BCthw: torch.Tensor = model.denoiser(
            hidden_states=x_BChw[:, :, None],
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            encoder_hidden_states=cond["hidden_BLE"].to(x_BChw.dtype),
            # an image has no padding
            padding_mask=x_BChw.new_zeros(1, 1, *size),
            return_dict=False,
        )[0]
        return out_BCthw[:, :, 0]


def _resize(mask_1KHW: torch.Tensor, size: Sequence[int], interpolation: object = None) -> torch.Tensor:
    return functional.interpolate(mask_1KHW, size=tuple(size), mode="nearest")


def _resize_without_torchvision() -> None:
    """Replace the denoiser's use of torchvision for resizing its mask (nearest neighbour) by PyTorch, if
    torchvision is missing.
    """
    module: Any = sys.modules[COSMOS]
    if not hasattr(module, "transforms"):
        nearest = SimpleNamespace(NEAREST="nearest")
        module.transforms = SimpleNamespace(
            functional=SimpleNamespace(resize=_resize), InterpolationMode=nearest
        )
