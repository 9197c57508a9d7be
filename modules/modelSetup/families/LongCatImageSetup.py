"""LongCat-Image and LongCat-Image-Edit: Qwen2.5-VL reads quotations letter by letter; a flow transformer with
rotary positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import NO_SOURCES, Conditioning, Sources
from modules.model.Model import Model
from modules.model.patches import grid_positions, pack, unpack
from modules.model.text.quotation import quotations
from modules.model.text.vision import PICTURE, START, PatchRules, Pictures, countable, scaled
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.families.longcat_image import TOKENS
from modules.spec.registry import FAMILIES

BEFORE = (
    "<|im_start|>system\nAs an image captioning expert, generate a descriptive text prompt based on an image content, "
    "suitable for input to a text-to-image model.<|im_end|>\n<|im_start|>user\n"
)
BEFORE_EDIT = (
    "<|im_start|>system\nAs an image editing expert, first analyze the content and attributes of the input image(s). "
    "Then, based on the user's editing instructions, clearly and precisely determine how to modify the given image(s), "
    "ensuring that only the specified parts are altered and all other aspects remain consistent with the original(s)."
    "<|im_end|>\n<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
TINY = 1e-8


@model_setup
class LongCatImageSetup(BaseModelSetup):
    """Prompts are used as written; its pipeline can let the text encoder rewrite them first."""

    spec = FAMILIES["LONGCAT_IMAGE"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        return Conditioning({"hidden_BLE": self._states(model, prompts, BEFORE, NO_SOURCES)})

    def _states(self, model: Model, prompts: Sequence[str], before: str, seen: Sources) -> torch.Tensor:
        """States (B, L, E) of the images and of prompts that are padded to one length.

        Args:
            before: template before the prompts, with a place for each image. States before these places are
                dropped.
        """
        tokenizer = model.parts["tokenizer"]
        # without the language model head
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
        pictures = Pictures.of(seen, PatchRules.of(model.parts.get("text_processor") or {})) if seen else None
        named = before if pictures is None else pictures.named_in(before)
        first, last = (tokenizer(text, add_special_tokens=False).input_ids for text in (named, AFTER))
        dropped = len(tokenizer(before.partition(START)[0], add_special_tokens=False).input_ids)

        def framed(middle_BL: torch.Tensor, first: list[int], last: list[int]) -> torch.Tensor:
            rows = [torch.tensor(row, device="cpu").expand(len(middle_BL), -1) for row in (first, last)]
            return torch.cat([rows[0], middle_BL, rows[1]], dim=1)

        mask_BL = framed(padded.attention_mask, [1] * len(first), [1] * len(last))
        shown = {} if pictures is None else pictures.inputs(encoder, tokenizer, first, mask_BL.bool())
        ids_BL = framed(padded.input_ids, first, last).to(device)
        with countable(ids_BL, encoder):
            out = encoder(
                input_ids=ids_BL,
                attention_mask=mask_BL.to(device),
                output_hidden_states=True,
                use_cache=False,
                **shown,
            )
        hidden_BLE: torch.Tensor = out.hidden_states[-1][:, dropped : -len(last)]
        if model.masks_padding:
            kept_BL = mask_BL[:, dropped : -len(last)].to(device).bool()
            hidden_BLE = hidden_BLE.masked_fill(~kept_BL[..., None], 0.0)
        return hidden_BLE

    def _corner(self, model: Model, states: int) -> int:
        """Row and column of the first patch of an image after a text with this number of states."""
        return TOKENS

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        images = [x_BChw, *(source_BChw.to(x_BChw.dtype) for source_BChw in cond.sources)]
        corner = self._corner(model, hidden_BLE.shape[1])
        positions = [_numbered(image_BChw, number, corner) for number, image_BChw in enumerate(images, 1)]
        image_L3 = torch.cat(positions)
        text_L3 = torch.arange(hidden_BLE.shape[1], device=x_BChw.device)[:, None].repeat(1, 3)
        text_L3[:, 0] = 0
        out_BLE = model.denoiser(
            hidden_states=torch.cat([pack(image_BChw) for image_BChw in images], dim=1),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            guidance=None,
            encoder_hidden_states=hidden_BLE,
            txt_ids=text_L3.to(image_L3.dtype),
            img_ids=image_L3,
            return_dict=False,
        )[0]
        # its output for the sources is ignored
        return unpack(out_BLE[:, : height * width // 4], height, width)

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """The guided prediction, with patches longer than in the prompt's prediction scaled down to that length."""
        wanted_BLE = pack(wanted_BChw)
        guided_BLE = pack(super().guide(wanted_BChw, unwanted_BChw, cfg))
        lengths_BL1 = wanted_BLE.norm(dim=-1, keepdim=True) / (guided_BLE.norm(dim=-1, keepdim=True) + TINY)
        return unpack(guided_BLE * lengths_BL1.clamp(max=1.0), *wanted_BChw.shape[-2:])


@model_setup
class LongCatImageEditSetup(LongCatImageSetup):
    """The model that edits an image according to the prompt. Its text encoder sees the image at half its size."""

    spec = FAMILIES["LONGCAT_IMAGE_EDIT"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        return self._encode_seeing(model, prompts, NO_SOURCES)

    def _encode_seeing(self, model: Model, prompts: Sequence[str], seen: Sources) -> Conditioning:
        shown = Sources(
            scaled(place, *(int(side * self.spec.shown_side) for side in place.shape[-2:])) for place in seen
        )
        before = f"{BEFORE_EDIT}{PICTURE * len(seen)}"
        return Conditioning({"hidden_BLE": self._states(model, prompts, before, shown)})

    def _corner(self, model: Model, states: int) -> int:
        """After the image tokens too; a shorter prompt does not move it."""
        return TOKENS + states - self.prompt_length(model)

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """Plain guidance. Only the text-to-image model rescales patches."""
        return super(LongCatImageSetup, self).guide(wanted_BChw, unwanted_BChw, cfg)


def _numbered(x_BChw: torch.Tensor, number: int, corner: int) -> torch.Tensor:
    """(h/2 * w/2, 3) positions of the patches of an image: its number, and rows and columns from ``corner``."""
    height, width = x_BChw.shape[-2:]
    ids_L3 = grid_positions(height // 2, width // 2, x_BChw.device) + corner
    ids_L3[:, 0] = number
    return ids_L3


def _tokens(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens of a prompt. Quotations are tokenized letter by letter."""
    pieces = (letters for text, quoted in quotations(prompt) for letters in (text if quoted else (text,)))
    return [token for piece in pieces for token in tokenizer(piece, add_special_tokens=False).input_ids]
