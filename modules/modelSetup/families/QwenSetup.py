"""Qwen-Image: Qwen2.5-VL text encoder, a two-stream flow transformer, an autoencoder made for videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import pack, unpack
from modules.model.text.encoding import causal_states
from modules.modelSetup.QwenAutoencoder import QwenAutoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.families.qwen import TOKENS
from modules.spec.registry import FAMILIES

BEFORE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
BEFORE_TOKENS = 34


@model_setup
class QwenSetup(QwenAutoencoder):
    spec = FAMILIES["QWEN"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        texts = [f"{BEFORE}{prompt}{AFTER}" for prompt in prompts]
        # without the head that would make words of every state
        encoder: Any = model.module("text_encoder").model
        hidden_BLE, mask_BL = causal_states(
            encoder, model.parts["tokenizer"], texts, BEFORE_TOKENS + TOKENS, layers=(-1,)
        )
        return Conditioning(
            {"hidden_BLE": hidden_BLE[:, BEFORE_TOKENS:], "mask_BL": mask_BL[:, BEFORE_TOKENS:]}
        )

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        mask_BL = cond["mask_BL"]
        out_BLE = model.denoiser(
            hidden_states=pack(x_BChw),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            encoder_hidden_states=cond["hidden_BLE"].to(x_BChw.dtype),
            # attention is faster without a mask
            encoder_hidden_states_mask=None if bool(mask_BL.all()) else mask_BL,
            img_shapes=[[(1, height // 2, width // 2)]] * len(x_BChw),
            return_dict=False,
        )[0]
        return unpack(out_BLE, height, width)

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """Guided, and every patch brought back to the length it has in the prediction for the prompt."""
        wanted_BLE = pack(wanted_BChw)
        guided_BLE = pack(super().guide(wanted_BChw, unwanted_BChw, cfg))
        lengths_BL1 = wanted_BLE.norm(dim=-1, keepdim=True) / guided_BLE.norm(dim=-1, keepdim=True)
        return unpack(guided_BLE * lengths_BL1, *wanted_BChw.shape[-2:])
