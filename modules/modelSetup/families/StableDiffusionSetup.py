"""Stable Diffusion with the layout of 1.5: CLIP text encoder, UNet, KL autoencoder; epsilon or v."""

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
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES
from modules.weights.part_sources import Sources
from modules.weights.single_file import Unsaid, load_single_file


@model_setup
class StableDiffusionSetup(ChunkedPrompts):
    spec = FAMILIES["STABLE_DIFFUSION_15"]

    def _load_rest(self, sources: Sources, dtypes: PartDtypes, wanted: Sequence[str]) -> dict[str, Any]:
        if sources.base.is_dir() or not self.spec.writes_single_file:
            return super()._load_rest(sources, dtypes, wanted)
        return load_single_file(sources.base, self.spec, wanted, dtypes, Unsaid(), sources.folders)

    def _readers(self, model: Model) -> list[ClipReader]:
        skip = model.layer_skips.get("text_encoder", 0)
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        return [ClipReader(model.module("text_encoder"), tokenizer, skip=skip, added=added)]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        return self._states(model, prompts)[0]

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        hidden_BLE = self.hidden_states(model, cond).to(x_BChw.dtype)
        return model.denoiser(  # type: ignore[no-any-return]
            x_BChw,
            t_B,
            encoder_hidden_states=hidden_BLE,
            encoder_attention_mask=cond.tensors.get(OWN),
            return_dict=False,
        )[0]


@model_setup
class StableDiffusion20Setup(StableDiffusionSetup):
    spec = FAMILIES["STABLE_DIFFUSION_20"]


@model_setup
class StableDiffusion20BaseSetup(StableDiffusionSetup):
    spec = FAMILIES["STABLE_DIFFUSION_20_BASE"]


@model_setup
class StableDiffusion21Setup(StableDiffusionSetup):
    spec = FAMILIES["STABLE_DIFFUSION_21"]


@model_setup
class StableDiffusion21BaseSetup(StableDiffusionSetup):
    spec = FAMILIES["STABLE_DIFFUSION_21_BASE"]


@model_setup
class StableDiffusion15InpaintingSetup(Inpainting, StableDiffusionSetup):
    spec = FAMILIES["STABLE_DIFFUSION_15_INPAINTING"]


@model_setup
class StableDiffusion20InpaintingSetup(Inpainting, StableDiffusionSetup):
    spec = FAMILIES["STABLE_DIFFUSION_20_INPAINTING"]
