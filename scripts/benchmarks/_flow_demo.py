"""The demo model as a flow-matching model, and images whose initial noise is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from modules.modelSetup.sample_images import SampleRequest, sample
from modules.util.rng import digest64
from scripts.benchmarks._taste_images import Images
from scripts.demo.denoiser import SCHEDULER
from scripts.demo.sampling import CFG_SCALE, load_model, to_pixels
from scripts.demo.world import SIZE, Pixels, Wish
from scripts.train_reward import save_array


class FlowSetup(StableDiffusionSetup):
    """The demo model, asked for the velocity of flow matching.

    Both kinds of model see the same noisy images, scaled differently. The noise level is the one with the same ratio
    of noise to signal, and both velocities are sums of the same image and noise.
    """

    @cached_property
    def angles_T(self) -> np.ndarray:
        """atan(noise / signal) of each timestep the model has learned."""
        schedule = DiscreteSchedule.from_config(SCHEDULER)
        signal_T, sigma_T = schedule.coefficients(torch.arange(schedule.steps))
        return torch.atan2(sigma_T, signal_T).numpy()

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        signal_B, sigma_B = model.schedule.coefficients(t_B)
        angle_B = torch.atan2(sigma_B, signal_B)
        timestep_B = torch.from_numpy(
            np.interp(angle_B.numpy(), self.angles_T, np.arange(len(self.angles_T)))
        ).float()
        length, part, rest = (
            one.float().view(-1, 1, 1, 1)
            for one in (torch.hypot(signal_B, sigma_B), angle_B.cos(), angle_B.sin())
        )
        x_BChw = x_BChw / length
        v_BChw = super().denoise(model, x_BChw, timestep_B, cond, size)
        return (rest - part) * x_BChw + (rest + part) * v_BChw


SETUP = FlowSetup()


def flow_model() -> Model:
    """The demo model with the schedule of flow matching."""
    model = load_model()
    model.schedule = FlowSchedule()
    return model


@dataclass(frozen=True)
class Bank:
    """Images of the base model, one after the other for each prompt, and the seeds of their noise."""

    images: Images
    seeds: list[int]
    each: int

    def first(self, each: int) -> Bank:
        """The first images of each prompt."""
        places = [i for i in range(len(self.seeds)) if i % self.each < each]
        return Bank(self.images.only(places), [self.seeds[i] for i in places], each)


def make(model: Model, wishes: Sequence[Wish], seeds: Sequence[int], steps: int) -> list[Pixels]:
    request = SampleRequest(
        [wish.caption() for wish in wishes], seeds=seeds, steps=steps, cfg=CFG_SCALE, size=(SIZE, SIZE),
        scheduler="EULER", batch_size=16,
    )  # fmt: skip
    return to_pixels(sample(SETUP, model, request))


def bank(
    model: Model, work: Path, seed: int, kind: str, wishes: Sequence[Wish], each: int, steps: int
) -> Bank:
    """The images of a kind, made unless they exist: ``each`` images of every wish in ``steps`` Euler steps."""
    columns = []
    seeds = [
        [digest64("prior-noise", seed, kind, p, n) % 2**32 for n in range(each)] for p in range(len(wishes))
    ]
    for n in range(each):
        file = work / f"seed-{seed}-{steps}" / f"{kind}-{len(wishes)}-{n:02d}.npy"
        if not file.is_file():
            save_array(file, np.stack(make(model, wishes, [row[n] for row in seeds], steps)))
        columns.append(np.load(file))
    pixels = [columns[n][p] for p in range(len(wishes)) for n in range(each)]
    return Bank(
        Images([w for w in wishes for _ in range(each)], pixels), [s for row in seeds for s in row], each
    )
