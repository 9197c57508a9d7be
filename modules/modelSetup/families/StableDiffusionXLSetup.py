"""Stable Diffusion XL: two CLIP text encoders, a UNet that is told the size and crop of its images; epsilon or v."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import OWN, Conditioning
from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.model.text.chunks import ClipReader
from modules.modelSetup.ChunkedPrompts import ChunkedPrompts
from modules.modelSetup.Inpainting import Inpainting
from modules.modelSetup.ModelFamily import widen_vae
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES
from modules.weights.part_sources import Sources
from modules.weights.single_file import SCHEDULER, Unsaid, load_single_file

UNSAID = Unsaid(
    scaling_factor=0.13025,
    scheduler={**SCHEDULER, "_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading"},
)


@model_setup
class StableDiffusionXLSetup(ChunkedPrompts):
    spec = FAMILIES["STABLE_DIFFUSION_XL_10_BASE"]

    def _set_latents(self, model: Model) -> None:
        super()._set_latents(model)
        widen_vae(model)

    def _load_rest(self, sources: Sources, dtypes: PartDtypes, wanted: Sequence[str]) -> dict[str, Any]:
        if sources.base.is_dir():
            return super()._load_rest(sources, dtypes, wanted)
        return load_single_file(sources.base, self.spec, wanted, dtypes, UNSAID, sources.folders)

    def _readers(self, model: Model) -> list[ClipReader]:
        """The states before the last layer, of both encoders."""
        made = []
        for name in ("text_encoder", "text_encoder_2"):
            tokenizer, added = self._tokenizer_of(model, name)
            made.append(ClipReader(model.module(name), tokenizer, -2, model.layer_skips.get(name, 0), added))
        return made

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        """Both encoders' states side by side, and the second one's pooled state of a prompt's first chunk."""
        cond, pooled_BE = self._states(model, prompts)
        return cond.plus(pooled_BE=pooled_BE)

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        geometry_B6 = cond.tensors.get("geometry_B6")
        if geometry_B6 is None:
            # an image made in this size and not cropped
            geometry_16 = torch.tensor([[*size, 0, 0, *size]]).to(x_BChw.device, non_blocking=True)
            geometry_B6 = geometry_16.expand(len(x_BChw), 6)
        return model.denoiser(  # type: ignore[no-any-return]
            x_BChw,
            t_B,
            encoder_hidden_states=self.hidden_states(model, cond).to(x_BChw.dtype),
            encoder_attention_mask=cond.tensors.get(OWN),
            # the numbers stay integers, because half precision has too few digits for pixels
            added_cond_kwargs={
                "text_embeds": cond["pooled_BE"].to(x_BChw.dtype),
                "time_ids": geometry_B6.float(),
            },
            return_dict=False,
        )[0]


@model_setup
class StableDiffusionXLInpaintingSetup(Inpainting, StableDiffusionXLSetup):
    spec = FAMILIES["STABLE_DIFFUSION_XL_10_BASE_INPAINTING"]
