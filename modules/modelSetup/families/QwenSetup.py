"""Qwen-Image: Qwen2.5-VL text encoder, a two-stream flow transformer, an autoencoder made for videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import pack, unpack
from modules.model.text.encoding import causal_states
from modules.modelSetup.BaseModelSetup import BaseModelSetup
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
class QwenSetup(BaseModelSetup):
    spec = FAMILIES["QWEN"]

    def _set_latents(self, model: Model) -> None:
        config: Any = model.vae.config
        model.latent_factor = 2 ** len(config.temperal_downsample)
        model.latent_channels = int(config.z_dim)

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

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        vae: Any = model.vae
        z_BChw = vae.encode(rgb_BCHW.unsqueeze(2)).latent_dist.mode().squeeze(2).float()
        mean_C11, deviation_C11 = _statistics(model, z_BChw.device)
        scaled_BChw: torch.Tensor = (z_BChw - mean_C11) / deviation_C11
        return scaled_BChw

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        vae: Any = model.vae
        mean_C11, deviation_C11 = _statistics(model, z_BChw.device)
        z_BCthw = (z_BChw.float() * deviation_C11 + mean_C11).to(z_BChw.dtype).unsqueeze(2)
        return vae.decode(z_BCthw).sample.squeeze(2)  # type: ignore[no-any-return]

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


def _statistics(model: Model, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the autoencoder's raw latents, (C, 1, 1) each."""
    config: Any = model.vae.config
    mean_C, deviation_C = (torch.tensor(v, device=device) for v in (config.latents_mean, config.latents_std))
    return mean_C[:, None, None], deviation_C[:, None, None]
