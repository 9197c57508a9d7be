"""Curves of a config's noise levels and learning rates, by the functions that training uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from modules.model.Model import Model
from modules.model.noising.noise import noise_level
from modules.model.noising.schedule import FlowSchedule
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import create_model_setup
from modules.modelSetup.training import noise_options
from modules.trainer.optim.LearningRateSchedule import LearningRateSchedule
from modules.util.config.resolution import parse_resolutions
from modules.util.config.TrainConfig import TrainConfig
from modules.util.jsonio import read_json
from modules.util.published_models import shift_of
from modules.util.rng import generator
from modules.weights.part_files import shipped

DRAWS, BINS, MOST_POINTS = 10_000, 50, 600


@dataclass(frozen=True)
class Curve:
    """Points of a curve, by rising x."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class LevelCurves:
    """Densities of noise levels, 0 clean and 1 noise.

    Args:
        drawn: of 10,000 draws as training makes them.
        own: of levels that the model walks through when it makes an image of that size.
        size: side of the image in pixels.
        shift: of the draws.
    """

    drawn: Curve
    own: Curve
    size: int
    shift: float


def level_curves(config: TrainConfig) -> LevelCurves:
    """The noise levels of a run at its first resolution.

    The model's own shift is that of the published model that its name tells, or else that of the family's base; a model
    of one's own may have another.

    Raises:
        ConfigError: a distribution that does not exist.
    """
    size, options = parse_resolutions(config.resolution)[0], noise_options(config)
    setup, model = create_model_setup(config.model_type), _outline(config)
    uniform_B = torch.rand(DRAWS, generator=generator("curves", 0), dtype=torch.float64)
    shape = _latents_of(setup, model, size)
    drawn = setup.level_shift(model, shape, options)
    usual, own = setup.sample_levels(model, shape)
    return LevelCurves(
        _density(noise_level(uniform_B, options, drawn)),
        _density(noise_level(uniform_B, usual, own)),
        size,
        options.shift if drawn is None else drawn,
    )


def _outline(config: TrainConfig) -> Model:
    """Return the data from which the shift is found: the published scheduler, the model's name, and the size of
    a latent.
    """
    spec = config.model_type.spec
    places = shipped(spec.key, "scheduler")
    found = read_json(places[0], "scheduler config") if places else {}
    name = getattr(config, spec.denoiser).model_name or config.base_model_name
    return Model(spec, name, {"scheduler": found}, FlowSchedule(), shift=shift_of(spec.key, name))


def _latents_of(setup: BaseModelSetup, model: Model, size: int) -> tuple[int, int, int]:
    """The shape of the latents of a square image."""
    step = setup.spec.size_multiple
    for model.latent_factor in (step // 2, step):
        # latents are as large as they have to be for the smallest image to be one token
        if setup.image_tokens(model, (step, step)) == 1:
            break
    side = size // model.latent_factor
    return 1, side, side


def _density(level_B: torch.Tensor) -> Curve:
    counts = torch.histc(level_B, BINS, 0.0, 1.0) * (BINS / level_B.numel())
    return Curve([(index + 0.5) / BINS for index in range(BINS)], counts.tolist())


def rate_curve(config: TrainConfig, steps: int, epoch_steps: int | None = None) -> Curve:
    """The run's learning rate over its optimizer steps, at most 601 of them, as one process trains with it.

    Args:
        epoch_steps: optimizer steps of the first epoch; ``None`` if they are not known yet.

    Raises:
        ConfigError: the class that CUSTOM names cannot be used.
    """
    schedule = LearningRateSchedule.from_config(config, steps, epoch_steps=epoch_steps)
    apart = max(1, -(-steps // MOST_POINTS))
    shown = sorted({*range(0, steps, apart), steps - 1})
    scale = math.sqrt(
        config.learning_rate_scaler.factor(config.batch_size, config.gradient_accumulation_steps, 1)
    )
    return Curve(
        [float(step + 1) for step in shown],
        [config.learning_rate * scale * schedule.factor(step) for step in shown],
    )
