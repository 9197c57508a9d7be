"""LongCat-Image: Qwen2.5-VL reads quotations letter by letter; a flow transformer with rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.patches import grid_positions, pack, unpack
from modules.model.text.quotation import quotations
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.families.longcat_image import TOKENS
from modules.spec.registry import FAMILIES

BEFORE = (
    "<|im_start|>system\nAs an image captioning expert, generate a descriptive text prompt based on an image content, "
    "suitable for input to a text-to-image model.<|im_end|>\n<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
TINY = 1e-8


@model_setup
class LongCatImageSetup(BaseModelSetup):
    """Prompts are read as they are written; its pipeline can let the text encoder rewrite them first."""

    spec = FAMILIES["LONGCAT_IMAGE"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer = model.parts["tokenizer"]
        # without the head that would make words of every state
        encoder: Any = model.module("text_encoder").model
        device = next(encoder.parameters()).device
        length = min(self.prompt_length(model), tokenizer.model_max_length)
        padded = tokenizer.pad(
            {"input_ids": [_tokens(tokenizer, prompt)[:length] for prompt in prompts]},
            max_length=length,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="pt",
        )
        before, after = (tokenizer(text, add_special_tokens=False).input_ids for text in (BEFORE, AFTER))

        def framed(middle_BL: torch.Tensor, first: list[int], last: list[int]) -> torch.Tensor:
            rows = [torch.tensor(row).expand(len(middle_BL), -1) for row in (first, last)]
            return torch.cat([rows[0], middle_BL, rows[1]], dim=1).to(device)

        out = encoder(
            input_ids=framed(padded.input_ids, before, after),
            attention_mask=framed(padded.attention_mask, [1] * len(before), [1] * len(after)),
            output_hidden_states=True,
            use_cache=False,
        )
        hidden_BLE = out.hidden_states[-1][:, len(before) : -len(after)]
        if model.masks_padding:
            mask_BL = padded.attention_mask.to(device).bool()
            hidden_BLE = hidden_BLE.masked_fill(~mask_BL[..., None], 0.0)
        return Conditioning({"hidden_BLE": hidden_BLE})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        image_L3 = grid_positions(height // 2, width // 2, x_BChw.device) + TOKENS
        image_L3[:, 0] = 1
        text_L3 = torch.arange(hidden_BLE.shape[1], device=x_BChw.device)[:, None].repeat(1, 3)
        text_L3[:, 0] = 0
        out_BLE = model.denoiser(
            hidden_states=pack(x_BChw),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            guidance=None,
            encoder_hidden_states=hidden_BLE,
            txt_ids=text_L3.to(image_L3.dtype),
            img_ids=image_L3,
            return_dict=False,
        )[0]
        return unpack(out_BLE, height, width)

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """Guided, and every patch that is longer than in the prediction for the prompt brought back to that length."""
        wanted_BLE = pack(wanted_BChw)
        guided_BLE = pack(super().guide(wanted_BChw, unwanted_BChw, cfg))
        lengths_BL1 = wanted_BLE.norm(dim=-1, keepdim=True) / (guided_BLE.norm(dim=-1, keepdim=True) + TINY)
        return unpack(guided_BLE * lengths_BL1.clamp(max=1.0), *wanted_BChw.shape[-2:])


def _tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Those of a prompt; quotations are read letter by letter."""
    pieces = (letters for text, quoted in quotations(prompt) for letters in (text if quoted else (text,)))
    return [token for piece in pieces for token in tokenizer(piece, add_special_tokens=False).input_ids]
