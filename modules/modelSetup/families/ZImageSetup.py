"""Z-Image: Qwen3 text encoder, a single-stream flow transformer over image and text, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import causal_states, chat_messages
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

LAYER = -2


@model_setup
class ZImageSetup(BaseModelSetup):
    """Other programs count guidance from 0 for this model: their scale is ours minus one."""

    spec = FAMILIES["Z_IMAGE"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        texts, length = chat_messages(tokenizer, prompts, enable_thinking=True), self.prompt_length(model)
        hidden_BLE, mask_BL = causal_states(
            model.module("text_encoder"), tokenizer, texts, length, layers=(LAYER,), added=added
        )
        cond = Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})
        return self._placed(model, cond, texts, length, side="right", fill=False)

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        hidden_BLE = self.hidden_states(model, cond).to(x_BChw.dtype)
        # this model counts time from noise to image, and its velocity has that direction
        out = model.denoiser(
            list(x_BChw.unsqueeze(2)),
            (1000.0 - t_B) / 1000.0,
            [hidden_LE[:length] for hidden_LE, length in zip(hidden_BLE, cond.tokens(), strict=True)],
            return_dict=False,
        )[0]
        return -torch.stack(out).squeeze(2)
