"""Krea 2: Qwen3-VL read at twelve depths that the denoiser mixes itself, a one-stream flow transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.noising.sampling import make_sampler
from modules.model.patches import grid_positions, pack, unpack
from modules.model.text.encoding import causal_states
from modules.modelSetup.QwenAutoencoder import QwenAutoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.families.krea_2 import AFTER_TOKENS, LAYERS
from modules.spec.registry import FAMILIES

BEFORE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
BEFORE_TOKENS = 34
DISTILLED_SHIFT = 1.15
"""The exponent of the shift for noise levels of the distilled model, whatever the size."""


@model_setup
class Krea2Setup(QwenAutoencoder):
    """Other programs count guidance from 0 for this model: their scale is ours minus one."""

    spec = FAMILIES["KREA_2"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        # without the vision tower
        encoder: Any = model.module("text_encoder").language_model
        states_BLE, mask_BL = causal_states(
            encoder,
            model.parts["tokenizer"],
            [f"{BEFORE}{prompt}" for prompt in prompts],
            BEFORE_TOKENS + self.prompt_length(model) - AFTER_TOKENS,
            LAYERS,
            suffix=AFTER,
        )
        return Conditioning(
            {"hidden_BLE": states_BLE[:, BEFORE_TOKENS:], "mask_BL": mask_BL[:, BEFORE_TOKENS:]}
        )

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        # text tokens have no position
        text_L3 = torch.zeros(hidden_BLE.shape[1], 3, device=x_BChw.device)
        image_L3 = grid_positions(height // 2, width // 2, x_BChw.device)
        out_BLE = model.denoiser(
            hidden_states=pack(x_BChw),
            encoder_hidden_states=hidden_BLE.unflatten(2, (len(LAYERS), -1)),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            position_ids=torch.cat([text_L3, image_L3]),
            encoder_attention_mask=cond.mask_if_needed(),
            return_dict=False,
        )[0]
        return unpack(out_BLE, height, width)

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        tokens = self.image_tokens(model, size)
        return make_sampler(model.schedule, name, steps, self.shift_config(model), tokens, self.spec.even_steps)

    def shift_config(self, model: Model) -> Mapping[str, Any]:
        config, published = super().shift_config(model), model.published
        if published is None or not published.distilled:
            return config
        return {**config, "base_shift": DISTILLED_SHIFT, "max_shift": DISTILLED_SHIFT}
