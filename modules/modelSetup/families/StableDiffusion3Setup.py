"""Stable Diffusion 3 and 3.5: two CLIP encoders and T5, a flow-matching transformer, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import clip_states, tokenize
from modules.model.text.LearnedWords import PLACES
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES


@model_setup
class StableDiffusion3Setup(BaseModelSetup):
    spec = FAMILIES["STABLE_DIFFUSION_3"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        """The two CLIP states side by side, padded to the width of T5's, followed by T5's along the token axis."""
        (first_BLE, first_BE), (second_BLE, second_BE) = (
            self._clip_states(model, name, prompts) for name in ("text_encoder", "text_encoder_2")
        )
        clip_BLE = torch.cat([first_BLE, second_BLE], dim=-1)
        if "text_encoder_3" in model.parts:
            t5_BLE, mask_BL = self._t5_states(model, "text_encoder_3", prompts)
            if model.masks_padding:
                t5_BLE = t5_BLE.masked_fill(~mask_BL[..., None], 0.0)
        else:
            # published for use without its largest encoder too, whose tokens are then all zero
            width = model.denoiser.config.joint_attention_dim  # type: ignore[union-attr]
            t5_BLE = clip_BLE.new_zeros(len(clip_BLE), self.prompt_length(model), width)  # type: ignore[arg-type]
        clip_BLE = torch.nn.functional.pad(clip_BLE, (0, t5_BLE.shape[-1] - clip_BLE.shape[-1]))
        cond = Conditioning(
            {
                "hidden_BLE": torch.cat([clip_BLE, t5_BLE.to(clip_BLE.dtype)], dim=1),
                "pooled_BE": torch.cat([first_BE, second_BE], dim=-1),
            }
        )
        if model.words is None or not model.words.puts_out:
            return cond
        return cond.plus(**{PLACES: self._places(model, prompts, clip_BLE.shape[1], t5_BLE.shape[1])})

    def _places(self, model: Model, prompts: Sequence[str], clips: int, t5s: int) -> torch.Tensor:
        """Return the places of words' output vectors: in the states of the CLIPs, then in those of T5."""
        made: list[torch.Tensor] = []
        for group, (name, limit) in enumerate((("text_encoder", clips), ("text_encoder_3", t5s))):
            if name not in model.parts:
                made.append(made[0].new_zeros(len(prompts), limit))
                continue
            tokenizer, added = self._tokenizer_of(model, name)
            ids_BL, _ = tokenize(tokenizer, prompts, model.module(name), limit)
            made.append(added.placed(ids_BL, group))  # type: ignore[union-attr]
        return torch.cat(made, dim=1)

    def _clip_states(
        self, model: Model, name: str, prompts: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokenizer, added = self._tokenizer_of(model, name)
        return clip_states(model.module(name), tokenizer, prompts, -2, model.layer_skips.get(name, 0), added)

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        return model.denoiser(  # type: ignore[no-any-return]
            hidden_states=x_BChw,
            timestep=t_B,
            encoder_hidden_states=self.hidden_states(model, cond).to(x_BChw.dtype),
            pooled_projections=cond["pooled_BE"].to(x_BChw.dtype),
            return_dict=False,
        )[0]


@model_setup
class StableDiffusion35Setup(StableDiffusion3Setup):
    """The same parts. Size, dual attention and normalised queries are set in the model's config."""

    spec = FAMILIES["STABLE_DIFFUSION_35"]
