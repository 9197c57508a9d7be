"""Qwen-Image 2.1: Qwen3-VL read before its last norm; text and image are one sequence, causal but for the image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.noising.sampling import dynamic_shift
from modules.model.text.encoding import causal_states, unnormed
from modules.modelSetup.QwenAutoencoder import QwenAutoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES
from modules.util.published_models import sample_levels

SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
BEFORE = f"{SYSTEM}<|im_start|>user\n"
BEFORE_TOKENS = 3
"""Tokens between the system message and a prompt."""
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
AFTER_TOKENS = 5
SLOT = 4
"""Tokens of an image for which its mask has one entry."""
RGB = 3


@model_setup
class Qwen21Setup(QwenAutoencoder):
    """Made to be sampled without guidance; true guidance is possible."""

    spec = FAMILIES["QWEN_21"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer = model.parts["processor"]
        # without the tower for images and the head that would make words of every state
        whole: Any = model.module("text_encoder")
        encoder = whole.model.language_model
        dropped = len(tokenizer(SYSTEM).input_ids)
        with unnormed(encoder):
            states_BLE, mask_BL = causal_states(
                encoder,
                tokenizer,
                # the model has no state for nothing
                [f"{BEFORE}{prompt or ' '}" for prompt in prompts],
                dropped + self.prompt_length(model) - AFTER_TOKENS,
                layers=(-1,),
                suffix=AFTER,
            )
        return Conditioning({"hidden_BLE": states_BLE[:, dropped:], "mask_BL": mask_BL[:, dropped:]})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        """Prompts of unlike length are denoised apart: where an image is in the sequence depends on the length."""
        lengths = cond["mask_BL"].sum(dim=1).tolist()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        made = []
        for length, rows in groupby(order, key=lengths.__getitem__):
            picked = torch.tensor(list(rows), device=x_BChw.device)
            hidden_BLE = cond["hidden_BLE"][picked, :length].to(x_BChw.dtype)
            made.append(_denoised(model.denoiser, x_BChw[picked], t_B[picked], hidden_BLE))
        back = torch.tensor(order, device=x_BChw.device).argsort()
        return torch.cat(made)[back]

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        """The autoencoder knows transparent images; these are opaque."""
        config: Any = model.vae.config
        opaque_BCHW = torch.ones_like(rgb_BCHW[:, :1]).expand(-1, int(config.in_channels) - RGB, -1, -1)
        return super()._encode_image(model, torch.cat([rgb_BCHW, opaque_BCHW], dim=1))

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        return super()._decode(model, z_BChw)[:, :RGB]

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        """Takes the noise levels that the model is published with, where there are as many as ``steps``."""
        sampler = super().make_sampler(model, name, steps, size)
        levels = sample_levels(model.source)
        if len(levels) == steps and hasattr(sampler, "set_begin_index"):
            mu = dynamic_shift(self.image_tokens(model, size), model.parts.get("scheduler") or {})
            sampler.set_timesteps(steps, sigmas=levels, mu=mu)
        return sampler

    def image_tokens(self, model: Model, size: tuple[int, int]) -> int:
        """One for each latent."""
        return (size[0] // model.latent_factor) * (size[1] // model.latent_factor)


def _denoised(
    denoiser: Any, x_BChw: torch.Tensor, t_B: torch.Tensor, hidden_BLE: torch.Tensor
) -> torch.Tensor:
    """The prediction for latents whose prompts have one length."""
    height, width = x_BChw.shape[-2:]
    tokens = height * width
    # the denoiser asks for the numbers of its mask, which plans without tensors must have too
    device = "cpu" if x_BChw.is_meta else x_BChw.device
    slots_L = torch.arange(hidden_BLE.shape[1] + tokens // SLOT, device=device) >= hidden_BLE.shape[1]
    out_BLE: torch.Tensor = denoiser(
        hidden_states=x_BChw.flatten(2).transpose(1, 2),
        encoder_hidden_states=hidden_BLE,
        timestep=(t_B / 1000.0).to(x_BChw.dtype),
        img_shapes=[[(1, height, width)]] * len(x_BChw),
        img_mask=slots_L.expand(len(x_BChw), -1),
        return_dict=False,
    )[0]
    x_BCn = out_BLE[:, -tokens:].transpose(1, 2)
    return x_BCn.unflatten(2, (height, width))  # type: ignore[no-any-return]
