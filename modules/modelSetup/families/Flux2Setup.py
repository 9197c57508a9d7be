"""FLUX.2: a language model read at three depths, a flow transformer over normalised patches of latents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.noising.sampling import make_sampler
from modules.model.text.encoding import causal_states, chat_messages, looked_up, states_of, tokenize
from modules.modelSetup.Flux2Autoencoder import Flux2Autoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.families.flux_2 import DEV_LAYERS, LAYERS
from modules.spec.registry import FAMILIES

LONG = 4300
"""Number of image tokens above which the number of steps no longer affects the shift."""

BETWEEN = 10
"""Distance on the time axis between the image and the first source, and between successive sources."""

SYSTEM = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing on object "
    "relationships, object\nattribution and actions without speculation."
)
"""System message of dev's text encoder before every prompt."""

IMAGE_MARK = "[IMG]"


@model_setup
class Flux2Setup(Flux2Autoencoder):
    spec = FAMILIES["FLUX_2"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        texts = chat_messages(tokenizer, prompts, enable_thinking=False)
        # without the language model head
        encoder: Any = model.module("text_encoder").model
        length = self.prompt_length(model)
        hidden_BLE, mask_BL = causal_states(
            encoder, tokenizer, texts, length, LAYERS, padded=True, added=added
        )
        if model.masks_padding:
            hidden_BLE = hidden_BLE.masked_fill(~mask_BL[..., None], 0.0)
        return self._placed(model, Conditioning({"hidden_BLE": hidden_BLE}), texts, length, side="right")

    def _guidance(self, model: Model, t_B: torch.Tensor, cond: Conditioning) -> torch.Tensor | None:
        """The guidance scale passed to the denoiser (B,), float32, if it has an input for it."""
        return None

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        height, width = x_BChw.shape[-2:]
        hidden_BLE = self.hidden_states(model, cond).to(x_BChw.dtype)
        images = [x_BChw, *(source_BChw.to(x_BChw.dtype) for source_BChw in cond.sources)]
        positions = [
            _positions(rows, columns, 1, x_BChw.device, number * BETWEEN)
            for number, (rows, columns) in enumerate(image_BChw.shape[-2:] for image_BChw in images)
        ]
        out_BLE = model.denoiser(
            hidden_states=torch.cat([one_BChw.flatten(2).transpose(1, 2) for one_BChw in images], dim=1),
            timestep=(t_B / 1000.0).to(x_BChw.dtype),
            guidance=self._guidance(model, t_B, cond),
            encoder_hidden_states=hidden_BLE,
            txt_ids=_positions(1, 1, hidden_BLE.shape[1], x_BChw.device),
            img_ids=torch.cat(positions),
            return_dict=False,
        )[0]
        # its output for the sources is ignored
        return out_BLE[:, : height * width].transpose(1, 2).unflatten(2, (height, width))  # type: ignore[no-any-return]

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        tokens = self.image_tokens(model, size)
        shift = _shift(tokens, steps)
        config = dict(model.parts.get("scheduler") or {}) | {"base_shift": shift, "max_shift": shift}
        return make_sampler(model.schedule, name, steps, config, tokens, self.spec.even_steps)

    def sample_levels(self, model: Model, shape: Sequence[int]) -> tuple[NoiseOptions, float | None]:
        size = (shape[-2] * model.latent_factor, shape[-1] * model.latent_factor)
        steps = self.spec.default_steps if model.published is None else model.published.steps
        return NoiseOptions(), math.exp(_shift(self.image_tokens(model, size), steps))

    def image_tokens(self, model: Model, size: tuple[int, int]) -> int:
        return (size[0] // model.latent_factor) * (size[1] // model.latent_factor)


@model_setup
class Flux2DevSetup(Flux2Setup):
    """Mistral 3 reads the prompt after a system message. The guidance scale is an input of the denoiser."""

    spec = FAMILIES["FLUX_2_DEV"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        encoder: Any = model.module("text_encoder")
        texts = [tokenizer.apply_chat_template(_conversation(prompt), tokenize=False) for prompt in prompts]
        # the template contains the start mark; padding is added on the tokenizer's side
        length = self.prompt_length(model)
        ids_BL, mask_BL = tokenize(tokenizer, texts, encoder, length, special=False)
        # without the language model head
        with looked_up(encoder.model, ids_BL, added) as known_BL:
            hidden_BLE = states_of(encoder.model, known_BL, mask_BL, DEV_LAYERS)
        if model.masks_padding:
            hidden_BLE = hidden_BLE.masked_fill(~mask_BL[..., None], 0.0)
        return self._placed(model, Conditioning({"hidden_BLE": hidden_BLE}), texts, length, special=False)

    def _guidance(self, model: Model, t_B: torch.Tensor, cond: Conditioning) -> torch.Tensor | None:
        if not model.denoiser.config.guidance_embeds:  # type: ignore[union-attr]
            return None
        told_B = cond.tensors.get("guidance_B")
        return torch.full_like(t_B, model.guidance, dtype=torch.float32) if told_B is None else told_B


def _conversation(prompt: str) -> list[dict[str, Any]]:
    """A prompt in the format of dev's chat template. A mark of a missing image is left out."""
    texts = {"system": SYSTEM, "user": prompt.replace(IMAGE_MARK, "")}
    return [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in texts.items()]


def _shift(tokens: int, steps: int) -> float:
    """The exponent of the shift of noise levels: linear in the number of tokens for 10 and for 200 steps, and
    linearly interpolated in the number of steps.
    """
    many = 0.00016927 * tokens + 0.45666666
    if tokens > LONG:
        return many
    few = 8.73809524e-05 * tokens + 1.89833333
    return few + (many - few) * (steps - 10) / 190.0


def _positions(height: int, width: int, depth: int, device: torch.device, time: int = 0) -> torch.Tensor:
    """(height * width * depth, 4) positions of tokens: time, row, column, index in the text."""
    axes = [torch.arange(n, device=device) for n in (height, width, depth)]
    return torch.cartesian_prod(torch.tensor([time], device=device), *axes)
