"""Qwen-Image and Qwen-Image-Edit: Qwen2.5-VL text encoder, a two-stream flow transformer, an autoencoder made for
videos.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import NO_SOURCES, Conditioning, Sources
from modules.model.Model import Model
from modules.model.patches import pack, unpack
from modules.model.text.encoding import causal_states
from modules.model.text.vision import PICTURE, picture_states, scaled_to_area
from modules.modelSetup.QwenAutoencoder import QwenAutoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

BEFORE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
BEFORE_TOKENS = 34
BEFORE_EDIT = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n"
)
BEFORE_EDIT_TOKENS = 64
SHOWN_MULTIPLE = 32
"""Sides of images shown to the text encoder of Edit-Plus are multiples of this."""


@model_setup
class QwenSetup(QwenAutoencoder):
    spec = FAMILIES["QWEN"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        texts = [f"{BEFORE}{prompt}{AFTER}" for prompt in prompts]
        # without the language model head
        encoder: Any = model.module("text_encoder").model
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        length = BEFORE_TOKENS + self.prompt_length(model)
        hidden_BLE, mask_BL = causal_states(encoder, tokenizer, texts, length, layers=(-1,), added=added)
        cond = Conditioning(
            {"hidden_BLE": hidden_BLE[:, BEFORE_TOKENS:], "mask_BL": mask_BL[:, BEFORE_TOKENS:]}
        )
        return self._placed(model, cond, texts, length, cut=BEFORE_TOKENS, side="right", fill=False)

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        images = [x_BChw, *(source_BChw.to(x_BChw.dtype) for source_BChw in cond.sources)]
        shapes = [(1, image_BChw.shape[-2] // 2, image_BChw.shape[-1] // 2) for image_BChw in images]
        out_BLE = model.denoiser(
            hidden_states=torch.cat([pack(image_BChw) for image_BChw in images], dim=1),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            encoder_hidden_states=self.hidden_states(model, cond).to(x_BChw.dtype),
            encoder_hidden_states_mask=cond.mask_if_needed(),
            img_shapes=[shapes] * len(x_BChw),
            return_dict=False,
        )[0]
        # its output for the sources is ignored
        return unpack(out_BLE[:, : height * width // 4], height, width)

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """The guided prediction, with every patch rescaled to its length in the prompt's prediction."""
        wanted_BLE = pack(wanted_BChw)
        guided_BLE = pack(super().guide(wanted_BChw, unwanted_BChw, cfg))
        lengths_BL1 = wanted_BLE.norm(dim=-1, keepdim=True) / guided_BLE.norm(dim=-1, keepdim=True)
        return unpack(guided_BLE * lengths_BL1, *wanted_BChw.shape[-2:])


@model_setup
class QwenEditSetup(QwenSetup):
    """The model that edits an image according to the prompt. Its text encoder sees the image too."""

    spec = FAMILIES["QWEN_EDIT"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        return self._encode_seeing(model, prompts, NO_SOURCES)

    def _encode_seeing(self, model: Model, prompts: Sequence[str], seen: Sources) -> Conditioning:
        # without the language model head
        encoder: Any = model.module("text_encoder").model
        hidden_BLE, mask_BL = picture_states(
            encoder,
            model.parts["tokenizer"],
            prompts,
            (f"{BEFORE_EDIT}{self._pictures(len(seen))}", AFTER),
            self.prompt_length(model),
            self._shown(seen),
            model.parts.get("processor") or {},
        )
        return Conditioning(
            {"hidden_BLE": hidden_BLE[:, BEFORE_EDIT_TOKENS:], "mask_BL": mask_BL[:, BEFORE_EDIT_TOKENS:]}
        )

    def _pictures(self, count: int) -> str:
        """The placeholders for the images before a prompt."""
        return PICTURE * count

    def _shown(self, seen: Sources) -> Sources:
        """The images as shown to the text encoder: here the same as for the denoiser."""
        return seen


@model_setup
class QwenEditPlusSetup(QwenEditSetup):
    """The model that edits up to three images, numbered in its prompt. Its text encoder sees smaller versions."""

    spec = FAMILIES["QWEN_EDIT_PLUS"]

    def _pictures(self, count: int) -> str:
        return "".join(f"Picture {number}: {PICTURE}" for number in range(1, count + 1))

    def _shown(self, seen: Sources) -> Sources:
        return Sources(scaled_to_area(place, self.spec.shown_area, SHOWN_MULTIPLE) for place in seen)
