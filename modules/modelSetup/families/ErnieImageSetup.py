"""ERNIE-Image: Ministral 3 text encoder, a one-stream flow transformer over patches of FLUX.2's latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import causal_states
from modules.modelSetup.Flux2Autoencoder import Flux2Autoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

LAYER = -2


@model_setup
class ErnieImageSetup(Flux2Autoencoder):
    """Its prompt enhancer (``pe``) is not loaded: prompts are used as written."""

    spec = FAMILIES["ERNIE"]
    variance_floor = 1e-5
    """The model was trained with this value; the published config says 1e-4."""

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        # without the vision part
        encoder: Any = model.module("text_encoder").language_model
        tokenizer = model.parts["tokenizer"]
        # a tokenizer that adds no start mark gives no tokens for an empty prompt
        nothing = "" if tokenizer("").input_ids else tokenizer.bos_token
        texts = [prompt or nothing for prompt in prompts]
        hidden_BLE, mask_BL = causal_states(
            encoder, tokenizer, texts, self.prompt_length(model), layers=(LAYER,)
        )
        return Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        out_BChw: torch.Tensor = model.denoiser(
            hidden_states=x_BChw,
            timestep=t_B.to(x_BChw.dtype),
            text_bth=cond["hidden_BLE"].to(x_BChw.dtype),
            text_lens=cond["mask_BL"].sum(dim=1),
            return_dict=False,
        )[0]
        return out_BChw
