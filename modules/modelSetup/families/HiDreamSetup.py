"""HiDream-I1: pooled CLIP states, T5, and Llama read at every depth; a flow transformer whose layers have experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.experts import let_gradients_through
from modules.model.Model import Model
from modules.model.noising.sampling import make_sampler
from modules.model.patches import grid_positions
from modules.model.text.encoding import clip_outputs, states_of, t5_states, tokenize
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.families.hidream import TOKENS
from modules.spec.registry import FAMILIES

SHIFT_CONFIG = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len")
PATCH = 2


@model_setup
class HiDreamSetup(BaseModelSetup):
    """Non-square images are padded to the model's maximum number of tokens, as in its training."""

    spec = FAMILIES["HI_DREAM_FULL"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        pooled_BE = torch.cat([self._pooled(model, prompts, which) for which in ("", "_2")], dim=-1)
        t5_BTE, mask_BT = t5_states(
            model.module("text_encoder_3"), model.parts["tokenizer_3"], prompts, TOKENS, masked=True
        )
        tokenizer = model.parts["tokenizer_4"]
        tokenizer.pad_token = tokenizer.eos_token
        # without the language model head
        llama: Any = model.module("text_encoder_4").model
        ids_BL, mask_BL = tokenize(tokenizer, prompts, llama, self.prompt_length(model))
        depths = range(1, llama.config.num_hidden_layers + 1)
        hidden_BLE = states_of(llama, ids_BL, mask_BL, depths)
        if model.masks_padding:
            t5_BTE = t5_BTE.masked_fill(~mask_BT[..., None], 0.0)
            hidden_BLE = hidden_BLE.masked_fill(~mask_BL[..., None], 0.0)
        return Conditioning({"hidden_BLE": hidden_BLE, "t5_BTE": t5_BTE, "pooled_BE": pooled_BE})

    def _pooled(self, model: Model, prompts: Sequence[str], which: str) -> torch.Tensor:
        """The pooled state of one CLIP, which was made for longer prompts than its tokenizer may claim."""
        encoder: Any = model.module(f"text_encoder{which}")
        ids_BL = model.parts[f"tokenizer{which}"](
            list(prompts),
            padding="max_length",
            max_length=min(TOKENS, encoder.config.max_position_embeddings),
            truncation=True,
            return_tensors="pt",
        ).input_ids
        return clip_outputs(encoder, ids_BL.to(next(encoder.parameters()).device), None)[1]

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        denoiser: Any = model.denoiser
        dtype, (_, width) = x_BChw.dtype, denoiser.config.caption_channels
        let_gradients_through(denoiser)
        # its own unpatching depends on the training mode, and asks the device for the image size
        denoiser.unpatchify = _as_patches
        out_BLE = denoiser(
            **_image(denoiser, x_BChw),
            timesteps=t_B,
            encoder_hidden_states_t5=cond["t5_BTE"].to(dtype),
            # all depths of one state are contiguous
            encoder_hidden_states_llama3=cond["hidden_BLE"]
            .to(dtype)
            .unflatten(2, (-1, width))
            .permute(2, 0, 1, 3),
            pooled_embeds=cond["pooled_BE"].to(dtype),
            return_dict=False,
        )[0]
        # this model's velocity points from noise to image
        return -_together(out_BLE, *x_BChw.shape[1:])

    def costliest_size(self, model: Model, size: tuple[int, int], step: int) -> tuple[int, int]:
        """A non-square size, up to the one to which such images are padded."""
        height, width = size
        largest: Any = model.denoiser.max_seq
        pads = self.image_tokens(model, size) <= largest and width > step
        return (height, width - step) if pads else size

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        """Make a sampler. If noise levels are shifted by size, its pipeline uses the largest shift for every
        image.
        """
        config = {name: value for name, value in model.sample_config.items() if name not in SHIFT_CONFIG}
        largest: Any = model.denoiser.max_seq
        return make_sampler(model.schedule, name, steps, config, largest, self.spec.even_steps)


def _as_patches(x_BLE: torch.Tensor, img_sizes: object, is_training: bool) -> torch.Tensor:
    return x_BLE


def _image(denoiser: Any, x_BChw: torch.Tensor) -> dict[str, Any]:
    """The denoiser's input for noisy latents. It pads non-square ones itself, up to its maximum size.

    Larger ones are passed as patches without padding, which is how it handles square ones.
    """
    height, width = (side // PATCH for side in x_BChw.shape[-2:])
    if height == width or height * width <= denoiser.max_seq:
        return {"hidden_states": x_BChw}
    patches_BChywx = x_BChw.unflatten(3, (width, PATCH)).unflatten(2, (height, PATCH))
    return {
        "hidden_states": patches_BChywx.permute(0, 2, 4, 3, 5, 1).reshape(len(x_BChw), height * width, -1),
        "hidden_states_masks": x_BChw.new_ones(len(x_BChw), height * width),
        "img_sizes": [(height, width)] * len(x_BChw),
        "img_ids": grid_positions(height, width, x_BChw.device).expand(len(x_BChw), -1, -1),
    }


def _together(out_BLE: torch.Tensor, channels: int, height: int, width: int) -> torch.Tensor:
    """The image (B, C, h, w) made of the first patches. Within a patch, channels are innermost."""
    rows, columns = height // PATCH, width // PATCH
    patches = out_BLE[:, : rows * columns].unflatten(1, (rows, columns))
    patches_BhwyxC: torch.Tensor = patches.unflatten(3, (PATCH, PATCH, channels))
    patches_BChywx = patches_BhwyxC.permute(0, 5, 1, 3, 2, 4)
    return patches_BChywx.reshape(len(out_BLE), channels, height, width)
