"""Ideogram 4: Qwen3-VL read at thirteen depths. Text and image form one sequence; guidance has a network of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.noising.sampling import initial_noise, make_sampler
from modules.model.patches import grid_positions
from modules.model.text.encoding import causal_states, unnormed
from modules.modelSetup.Flux2Autoencoder import Flux2Autoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.families.ideogram_4 import LAYERS
from modules.spec.registry import FAMILIES

TEXT, IMAGE, NOTHING = 3, 2, 0
"""Token types of the denoiser."""
IMAGE_START = 65536
"""Positions of image tokens start here on all axes, so that no text reaches them."""
BASE_AREA = 512 * 512
"""Area in pixels of images whose noise levels are not shifted."""
SPREAD = 1.5
"""Standard deviation of the logit of noise levels, in training and in samples."""
LEAST_LOG_SNR, MOST_LOG_SNR = -15.0, 18.0
"""Limits of the log signal-to-noise ratio for the steps of a sample."""
POLISHED = 16
"""At the end of a sample, one step in 16 has less guidance."""
POLISH_SCALE = 3.0
PLACE = "{prompt}"


@model_setup
class Ideogram4Setup(Flux2Autoencoder):
    """Made for prompts in JSON, but reads any text. Its prompt enhancer is not loaded."""

    spec = FAMILIES["IDEOGRAM_4"]
    channels_last = True

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        # without the vision tower
        encoder: Any = model.module("text_encoder").language_model
        tokenizer = model.parts["tokenizer"]
        before, after = _template(tokenizer)
        with unnormed(encoder):
            states_BLE, mask_BL = causal_states(
                encoder,
                tokenizer,
                [f"{before}{prompt}" for prompt in prompts],
                self.prompt_length(model) - len(tokenizer(after).input_ids),
                # states are counted from the embedding
                [layer + 1 for layer in LAYERS],
                suffix=after,
            )
        # the layers of one channel are adjacent
        hidden_BLE = states_BLE.unflatten(2, (len(LAYERS), -1)).transpose(2, 3).flatten(2)
        return Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        return _velocity(model.denoiser, x_BChw, t_B, cond["hidden_BLE"].to(x_BChw.dtype), cond["mask_BL"])

    def unprompted(self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        denoiser: Any = model.module(self.spec.guide)
        nothing_BLE = x_BChw.new_zeros(len(x_BChw), 0, denoiser.config.llm_features_dim)
        nothing_BL = torch.zeros(len(x_BChw), 0, dtype=torch.bool, device=x_BChw.device)
        return _velocity(denoiser, x_BChw, t_B, nothing_BLE, nothing_BL)

    def guidance_scales(self, cfg: float, steps: int) -> list[float]:
        """The last sixteenth of the steps has a scale of at most 3: of 48 steps at 7, the last 3."""
        last = steps // POLISHED
        return [cfg] * (steps - last) + [min(cfg, POLISH_SCALE)] * last

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        levels = _levels(max(steps, 1), _mean(size))
        config = model.parts.get("scheduler")
        return make_sampler(
            model.schedule, name, steps, config, self.image_tokens(model, size), levels=levels
        )

    def start_noise(
        self, model: Model, seeds: Sequence[int], size: tuple[int, int]
    ) -> tuple[torch.Tensor, list[torch.Generator]]:
        """The initial noise, drawn token by token."""
        height, width = (side // model.latent_factor for side in size)
        noise_BLC, generators = initial_noise(seeds, (height * width, model.latent_channels))
        return noise_BLC.transpose(1, 2).unflatten(2, (height, width)), generators

    def image_tokens(self, model: Model, size: tuple[int, int]) -> int:
        return (size[0] // model.latent_factor) * (size[1] // model.latent_factor)

    def level_shift(self, model: Model, shape: Sequence[int], options: NoiseOptions) -> float | None:
        """Shift a logit-normal by as much as samples of that size are shifted."""
        if not options.shifts_by_size:
            return None
        return math.exp(_mean((shape[-2] * model.latent_factor, shape[-1] * model.latent_factor)))

    def sample_levels(self, model: Model, shape: Sequence[int]) -> tuple[NoiseOptions, float | None]:
        options = NoiseOptions(distribution="LOGIT_NORMAL", weight=SPREAD - 1.0, shifts_by_size=True)
        return options, self.level_shift(model, shape, options)


def _template(tokenizer: Any) -> tuple[str, str]:
    """The parts of the tokenizer's template before and after a prompt."""
    said = [{"role": "user", "content": [{"type": "text", "text": PLACE}]}]
    text: str = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    before, _, after = text.partition(PLACE)
    return before, after


def _mean(size: tuple[int, int]) -> float:
    """Mean of the logit of noise levels, for images of (height, width) pixels."""
    return 0.5 * math.log(size[0] * size[1] / BASE_AREA)


def _levels(steps: int, mean: float) -> list[float]:
    """Descending noise levels of the steps of a sample: equally likely parts of a logit-normal, clamped to limits."""
    share_T = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)[:-1]
    level_T = torch.sigmoid(mean + SPREAD * torch.special.ndtri(share_T))
    least, most = (1.0 / (1.0 + math.exp(0.5 * ratio)) for ratio in (MOST_LOG_SNR, LEAST_LOG_SNR))
    # rounded as in its pipeline
    found: list[float] = (1.0 - (1.0 - level_T).clamp(least, most)).float().tolist()
    return found


def _velocity(
    denoiser: Any, x_BChw: torch.Tensor, t_B: torch.Tensor, hidden_BLE: torch.Tensor, text_BL: torch.Tensor
) -> torch.Tensor:
    """The output of a denoiser for images after texts. Padding of the texts attends only to padding."""
    height, width = x_BChw.shape[-2:]
    tokens_BLC = x_BChw.flatten(2).transpose(1, 2)
    (batch, length), count, device = text_BL.shape, height * width, x_BChw.device
    image_BL = torch.ones(batch, count, dtype=torch.bool, device=device)
    told_BL = torch.cat([torch.where(text_BL, TEXT, NOTHING), torch.where(image_BL, IMAGE, NOTHING)], dim=1)
    text_L3 = torch.arange(length, device=device)[:, None].expand(-1, 3)
    image_L3 = grid_positions(height, width, device).long() + IMAGE_START
    out_BLC: torch.Tensor = denoiser(
        hidden_states=torch.cat([x_BChw.new_zeros(batch, length, tokens_BLC.shape[2]), tokens_BLC], dim=1),
        # this model counts time from noise to image, and its velocity has that direction
        timestep=(1.0 - t_B / 1000.0).to(x_BChw.dtype),
        encoder_hidden_states=torch.cat(
            [hidden_BLE, hidden_BLE.new_zeros(batch, count, hidden_BLE.shape[2])], dim=1
        ),
        position_ids=torch.cat([text_L3, image_L3]).expand(batch, -1, -1),
        segment_ids=torch.where(told_BL == NOTHING, -1, 1),
        indicator=told_BL,
        return_dict=False,
    )[0]
    velocity_BChw: torch.Tensor = -out_BLC[:, length:].transpose(1, 2).unflatten(2, (height, width))
    return velocity_BChw
