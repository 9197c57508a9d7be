"""The variational bound, against distributions of torch, and in training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from modules.model.noising.noise import NoiseOptions
from modules.model.noising.schedule import DiscreteSchedule, Prediction
from modules.modelSetup import training
from modules.objective.supervised import LossOptions
from modules.objective.variational import variational_bits
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import image_batch

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
ALPHAS = torch.cumprod(1 - BETAS, 0)


def drawn(count: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(count, 2, 3, 3, generator=source) for _ in range(3)]


def noisy(clean: torch.Tensor, noise: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    alpha = ALPHAS[steps].view(-1, 1, 1, 1)
    return (alpha.sqrt() * clean + (1 - alpha).sqrt() * noise).float()


def step(clean: torch.Tensor, shown: torch.Tensor, number: int) -> tuple[torch.Tensor, float]:
    """Mean and variance of the step back, by hand (Ho et al. 2020, equation 7)."""
    alpha, before, beta = (float(one[number]) for one in (ALPHAS, torch.roll(ALPHAS, 1), BETAS))
    mean = before**0.5 * beta / (1 - alpha) * clean + (1 - beta) ** 0.5 * (1 - before) / (1 - alpha) * shown
    return mean, beta * (1 - before) / (1 - alpha)


@pytest.mark.parametrize("number", [1, 20, 999])
def test_it_is_the_divergence_of_two_normal_distributions(number: int) -> None:
    clean, noise, guess = drawn(1)
    steps = torch.tensor([number])
    shown, spread = noisy(clean, noise, steps), torch.full_like(clean, 0.3)
    alpha = float(ALPHAS[number])
    true, variance = step(clean, shown, number)
    said, _ = step((shown - (1 - alpha) ** 0.5 * guess) / alpha**0.5, shown, number)
    log = 0.65 * math.log(float(BETAS[number])) + 0.35 * math.log(variance)
    expected = kl_divergence(Normal(true, variance**0.5), Normal(said, math.exp(0.5 * log))) / math.log(2)
    bits = variational_bits(clean, shown, guess, spread, ALPHAS, steps)
    assert torch.allclose(bits, expected, rtol=2e-3, atol=1e-4)
    exact = variational_bits(clean, shown, noise, torch.full_like(clean, -1.0), ALPHAS, steps)
    assert exact.abs().max() < 1e-3, "the true step has no divergence"


def test_the_last_step_is_a_likelihood() -> None:
    clean, noise, _ = drawn(2)
    steps = torch.tensor([0, 500])
    bits = variational_bits(clean, noisy(clean, noise, steps), noise, torch.zeros_like(clean), ALPHAS, steps)
    assert bits.isfinite().all()
    assert (bits[0] > 0).all()


def test_it_trains_the_variance_alone() -> None:
    clean, noise, guess = drawn(2)
    guess.requires_grad_()
    spread, steps = torch.zeros_like(clean, requires_grad=True), torch.tensor([5, 500])
    variational_bits(clean, noisy(clean, noise, steps), guess, spread, ALPHAS, steps).sum().backward()
    assert guess.grad is None
    assert spread.grad is not None
    assert (spread.grad != 0).all()


def test_pixart_learns_its_variance_and_the_default_leaves_it() -> None:
    setup, model = tiny_setup("PIXART_ALPHA"), tiny_model("PIXART_ALPHA")
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    config = TrainConfig.from_dict({"model_type": "PIXART_ALPHA"})
    assert training.loss_options(config).variational_strength == 0.0
    made = {}
    for strength in (0.0, 1.0, 2.0):
        out = model.denoiser.proj_out.requires_grad_(True)
        out.zero_grad()
        options = LossOptions(variational_strength=strength)
        loss_B = setup.calculate_loss(model, batch, draw, options)
        loss_B.sum().backward()
        # of each patch's outputs, the last four channels are the variance
        gradient = out.weight.grad.clone().unflatten(0, (-1, 8))
        made[strength] = loss_B.detach(), gradient[:, :4], gradient[:, 4:]
    assert (made[0.0][2] == 0).all()
    assert (made[1.0][2].abs().amax(dim=(0, 2)) > 0).all()
    assert torch.equal(made[0.0][1], made[1.0][1]), "the prediction of noise learns as without it"
    added = [made[strength][0] - made[0.0][0] for strength in (1.0, 2.0)]
    assert torch.allclose(2 * added[0], added[1], rtol=1e-4)
    assert (added[0] > 0).all()


def test_models_without_a_variance_refuse_it() -> None:
    config = TrainConfig.from_dict({"model_type": "STABLE_DIFFUSION_15", "vb_loss_strength": 1.0})
    assert [error.field for error in find_problems(config).errors] == ["vb_loss_strength"]


def test_both_kinds_of_prediction_give_the_same_bits() -> None:
    setup, model = tiny_setup("PIXART_ALPHA"), tiny_model("PIXART_ALPHA")
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    clean, noise = batch.latents_BChw, draw.noise_BChw
    guess = noise + 0.3 * torch.randn(noise.shape, generator=torch.Generator().manual_seed(0))
    spread, made = torch.full_like(clean, 0.2), []
    alphas = model.schedule.alphas_cumprod_T  # type: ignore[attr-defined]
    signal, sigma = (one.view(-1, 1, 1, 1).float() for one in model.schedule.coefficients(draw.timestep_B))
    shown = signal * clean + sigma * noise
    # the clean image that the guess means, and from both of them v
    velocity = signal * guess - sigma * (shown - sigma * guess) / signal
    schedule = model.schedule
    try:
        for kind, said in (("epsilon", guess), ("v_prediction", velocity)):
            model.schedule = DiscreteSchedule(alphas, kind)  # type: ignore[arg-type]
            made.append(setup._variational_bits(model, Prediction(said, said, spread), draw, batch))
    finally:
        model.schedule = schedule
    assert torch.allclose(made[0], made[1], rtol=1e-3, atol=1e-4)


def test_images_of_prior_preservation_teach_no_variance() -> None:
    setup, model = tiny_setup("PIXART_ALPHA"), tiny_model("PIXART_ALPHA")
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    kept = replace(batch, prior_B=torch.tensor([True, False]))
    plain_B, bits_B, kept_B = (
        setup.calculate_loss(model, one, draw, LossOptions(variational_strength=strength)).detach()
        for one, strength in ((batch, 0.0), (batch, 1.0), (kept, 1.0))
    )
    assert bits_B[0] > plain_B[0]
    assert torch.equal(kept_B, torch.stack([plain_B[0], bits_B[1]]))


def test_a_schedule_that_ends_in_pure_noise_refuses_it() -> None:
    config = TrainConfig.from_dict({
        "model_type": "PIXART_ALPHA", "vb_loss_strength": 1.0, "force_v_prediction": True,
        "rescale_noise_scheduler_to_zero_terminal_snr": True,
    })  # fmt: skip
    assert "vb_loss_strength" in [error.field for error in find_problems(config).errors]
