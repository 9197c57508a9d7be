"""What every denoiser is given in a training step, and which way its output points: by a table kept by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from modules.model.batch import NoiseDraw
from modules.model.Model import Model
from tests.contracts.test_family import families
from tests.tiny import tiny_model, tiny_setup, wide_size
from tests.tiny.batches import image_batch

Turn = Callable[[torch.Tensor], torch.Tensor]
TIMES = (10, 500, 990)


def packed(z_BChw: torch.Tensor) -> torch.Tensor:
    """Tokens of 2x2 latents, channels outermost."""
    batch, channels, height, width = z_BChw.shape
    cut = z_BChw.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(batch, height * width // 4, 4 * channels)


def patches(z_BChw: torch.Tensor) -> torch.Tensor:
    """Tokens of 2x2 latents, channels innermost."""
    batch, channels, height, width = z_BChw.shape
    cut = z_BChw.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1)
    return cut.reshape(batch, height * width // 4, 4 * channels)


def tokens(z_BChw: torch.Tensor) -> torch.Tensor:
    """A token for each latent."""
    return z_BChw.flatten(2).transpose(1, 2)


def plain(z_BChw: torch.Tensor) -> torch.Tensor:
    return z_BChw


def frames(z_BChw: torch.Tensor) -> torch.Tensor:
    """A film of one image."""
    return z_BChw[:, :, None]


class Call(NamedTuple):
    """How a denoiser is called.

    Args:
        time: its argument for the noise level s, 0 to 1.
        sign: of its output, against noise minus image (or noise, or v).
        given, made: layout of the latents and of the output.
        name: of the argument of time.
        last: whether the image comes after texts or sources, instead of before them.
    """

    time: Callable[[torch.Tensor], torch.Tensor]
    sign: int = 1
    given: Turn = plain
    made: Turn = plain
    name: str = "timestep"
    last: bool = False


def level(s: torch.Tensor) -> torch.Tensor:
    return s


def rest(s: torch.Tensor) -> torch.Tensor:
    return 1.0 - s


def thousandths(s: torch.Tensor) -> torch.Tensor:
    return 1000.0 * s


PACKED = Call(level, given=packed, made=packed)
TOKENS = Call(level, given=tokens, made=tokens)
COUNTED = Call(thousandths)
CALLS = {
    "ANIMA": Call(level, given=frames, made=frames),
    "CHROMA_1": PACKED,
    "ERNIE": COUNTED,
    "FLUX_DEV_1": PACKED,
    "FLUX_SCHNELL_1": PACKED,
    "FLUX_KONTEXT_DEV_1": PACKED,
    "FLUX_2": TOKENS,
    "FLUX_2_DEV": TOKENS,
    # square images are cut into patches inside, and it says what becomes of each
    "HI_DREAM_FULL": Call(thousandths, -1, made=patches, name="timesteps"),
    "IDEOGRAM_4": Call(rest, -1, tokens, tokens, last=True),
    "KREA_2": PACKED,
    "LONGCAT_IMAGE": PACKED,
    "LONGCAT_IMAGE_EDIT": PACKED,
    "LUMINA_2": Call(rest, -1),
    "PIXART_ALPHA": COUNTED,
    "PIXART_SIGMA": COUNTED,
    "QWEN": PACKED,
    "QWEN_EDIT": PACKED,
    "QWEN_EDIT_PLUS": PACKED,
    "QWEN_21": Call(level, given=tokens, made=tokens, last=True),
    "SANA": COUNTED,
    "STABLE_DIFFUSION_15": COUNTED,
    "STABLE_DIFFUSION_15_INPAINTING": COUNTED,
    "STABLE_DIFFUSION_20": COUNTED,
    "STABLE_DIFFUSION_20_BASE": COUNTED,
    "STABLE_DIFFUSION_20_INPAINTING": COUNTED,
    "STABLE_DIFFUSION_3": COUNTED,
    "STABLE_DIFFUSION_35": COUNTED,
    "STABLE_DIFFUSION_XL_10_BASE": COUNTED,
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": COUNTED,
    # a list of images, a film of one each
    "Z_IMAGE": Call(rest, -1, frames, frames),
}
"""Time, sign and layout as the models are published: how the pipelines of diffusers call their denoisers."""
CASES = [*families(), ("STABLE_DIFFUSION_XL_10_BASE", "v_prediction")]


def mixed(model: Model, z_BChw: torch.Tensor, draw: NoiseDraw) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy latents and what is to be predicted, by the definition or by diffusers."""
    from diffusers import DDPMScheduler

    noise_BChw, kind = draw.noise_BChw, model.schedule.prediction
    if kind == "flow":
        s_B111 = draw.timestep_B.view(-1, 1, 1, 1) / 1000.0
        return (1.0 - s_B111) * z_BChw + s_B111 * noise_BChw, noise_BChw - z_BChw
    known = model.parts["scheduler"]
    names = ("beta_start", "beta_end", "beta_schedule", "num_train_timesteps")
    scheduler: Any = DDPMScheduler(**{name: known[name] for name in names if name in known})
    given = (z_BChw, noise_BChw, draw.timestep_B)
    return scheduler.add_noise(*given), noise_BChw if kind == "epsilon" else scheduler.get_velocity(*given)


class Stand:
    """Stands for a denoiser: compares what it is given with the table, and answers the truth in its own way."""

    def __init__(self, call: Call, noisy_BChw: torch.Tensor, truth_BChw: torch.Tensor, doubled: bool) -> None:
        self.call, self.noisy, self.truth, self.doubled = call, noisy_BChw, truth_BChw, doubled
        self.seen: list[int] = []

    def __call__(self, *args: Any, **named: Any) -> tuple[Any]:
        call = self.call
        time_B = named[call.name] if call.name in named else args[1]
        documented_T = call.time(torch.tensor(TIMES) / 1000.0)
        rows = [int((documented_T - time).abs().argmin()) for time in time_B.float()]
        assert torch.allclose(time_B.float(), documented_T[rows], atol=1e-6), (time_B, documented_T)
        self.seen += rows
        given = named["hidden_states"] if "hidden_states" in named else args[0]
        latents = torch.stack(given) if isinstance(given, list) else given
        noisy = call.given(self.noisy[rows])
        # what else is there: channels of what is painted into, or tokens of texts and sources
        others = latents.shape[1] - noisy.shape[1]
        latents = latents[:, others:] if call.last else latents[:, : noisy.shape[1]]
        assert torch.allclose(latents, noisy, atol=1e-5)
        truth = call.sign * call.made(self.truth[rows])
        if isinstance(given, list):
            return (list(truth),)
        if call.given in (packed, tokens):
            other = truth.new_full((len(truth), others, truth.shape[2]), 100.0)
            truth = torch.cat([other, truth] if call.last else [truth, other], dim=1)
        # some say the variance too
        return (torch.cat([truth, truth], dim=1) if self.doubled else truth,)


def test_every_family_is_in_the_table() -> None:
    assert set(CALLS) == {key for key, _ in families()}


@pytest.mark.parametrize(("key", "prediction"), CASES, ids=["-".join(case) for case in CASES])
def test_a_step_gives_the_denoiser_time_and_latents_as_published_and_the_truth_has_no_loss(
    key: str, prediction: str
) -> None:
    setup, model = tiny_setup(key), tiny_model(key, prediction)
    size = (32, 32) if key == "HI_DREAM_FULL" else wide_size(key)
    batch = image_batch(setup, model, ["a", "b", "c"], size=size)
    noise = torch.randn(batch.latents_BChw.shape, generator=torch.Generator().manual_seed(5))
    times = torch.tensor(TIMES)
    draw = NoiseDraw(times.float() if model.schedule.prediction == "flow" else times, noise)
    noisy, truth = mixed(model, batch.latents_BChw, draw)
    stand = Stand(CALLS[key], noisy, truth, key.startswith("PIXART"))
    denoiser: Any = model.denoiser
    denoiser.forward = stand
    loss_B = setup.calculate_loss(model, batch, draw)
    assert sorted(stand.seen) == [0, 1, 2], "each of the three times once"
    assert float(loss_B.abs().max()) < 1e-8 and float((truth**2).mean()) > 0.1
