"""Distances and noise-level weights against independent float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.objective.supervised import (
    MaskOptions,
    SupervisedOptions,
    combined_loss,
    mask_weight,
    mse_per_sample,
    noise_level_weight,
)

strength = st.one_of(st.just(0.0), st.floats(0.01, 3.0))


def tensors(seed: int, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    predicted, target = (
        scale * torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    return predicted.to(dtype), target.to(dtype)


@given(
    seed=st.integers(0, 50),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    options=st.builds(SupervisedOptions, strength, strength, strength, strength, st.floats(0.1, 5.0)),
)
def test_combination(seed: int, scale: float, options: SupervisedOptions) -> None:
    predicted, target = tensors(seed, scale, torch.float64)
    d = (predicted - target).numpy().reshape(3, -1)
    size, delta = np.abs(d), options.huber_delta
    log_cosh = np.logaddexp(size, -size) - np.log(2.0)
    huber = np.where(size < delta, 0.5 * d**2, delta * (size - 0.5 * delta))
    expected = (
        options.mse_strength * d**2
        + options.mae_strength * size
        + options.log_cosh_strength * log_cosh
        + options.huber_strength * huber
    ).mean(1)
    np.testing.assert_allclose(combined_loss(predicted, target, options), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_reduced_in_float32(dtype: torch.dtype) -> None:
    predicted, target = tensors(0, 1.0, dtype)
    expected = (predicted.double() - target.double()).square().flatten(1).mean(1)
    for loss_B in (mse_per_sample(predicted, target), combined_loss(predicted, target, SupervisedOptions())):
        assert loss_B.dtype == torch.float32
        np.testing.assert_allclose(loss_B, expected, rtol=1e-5)


def test_nothing_asked_for_gives_zero_and_still_differentiates() -> None:
    predicted, target = tensors(0, 1.0, torch.float32)
    predicted.requires_grad_()
    loss_B = combined_loss(predicted, target, SupervisedOptions(mse_strength=0.0))
    loss_B.sum().backward()
    assert loss_B.tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(predicted.grad, torch.zeros_like(predicted))


class TestNoiseLevelWeight:
    snr = np.array([1e-4, 0.3, 1.0, 5.0, 700.0, 5000.0])

    def weight(self, function: str, prediction: str, gamma: float = 5.0) -> np.ndarray:
        result = noise_level_weight(function, torch.tensor(self.snr), prediction, gamma)
        assert isinstance(result, torch.Tensor)
        return result.numpy()

    def test_min_snr(self) -> None:
        top = np.minimum(self.snr, 5.0)
        np.testing.assert_allclose(self.weight("MIN_SNR_GAMMA", "epsilon"), top / self.snr)
        np.testing.assert_allclose(self.weight("MIN_SNR_GAMMA", "v_prediction"), top / (self.snr + 1))

    def test_debiased(self) -> None:
        clipped = np.minimum(self.snr, 1000.0)
        np.testing.assert_allclose(self.weight("DEBIASED_ESTIMATION", "epsilon"), clipped**-0.5)
        np.testing.assert_allclose(self.weight("DEBIASED_ESTIMATION", "v_prediction"), (clipped + 1) ** -0.5)

    def test_p2(self) -> None:
        np.testing.assert_allclose(self.weight("P2", "epsilon", 1.0), 1 / (1 + self.snr))
        np.testing.assert_allclose(self.weight("P2", "v_prediction", 0.5), (2 + self.snr) ** -0.5)

    @pytest.mark.parametrize("function", ["MIN_SNR_GAMMA", "DEBIASED_ESTIMATION", "P2"])
    @pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
    def test_no_signal_at_all_is_finite(self, function: str, prediction: str) -> None:
        weight_B = noise_level_weight(function, torch.zeros(1), prediction, 5.0)
        assert torch.as_tensor(weight_B).isfinite().all()

    def test_constant_needs_nothing(self) -> None:
        assert noise_level_weight("CONSTANT", None, "flow", 5.0) == 1.0

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="flow-matching"):
            noise_level_weight("P2", torch.ones(1), "flow", 1.0)
        with pytest.raises(ValueError, match="unknown loss weight 'P3'"):
            noise_level_weight("P3", torch.ones(1), "epsilon", 1.0)
        with pytest.raises(ValueError, match="signal-to-noise"):
            noise_level_weight("P2", None, "epsilon", 1.0)


def test_weights_by_the_ratio_and_by_the_level() -> None:
    snr_B, sigma_B = torch.tensor([0.5, 2.0, 50.0]), torch.tensor([0.25, 0.5, 1.0])
    assert noise_level_weight("SNR", snr_B, "epsilon", 5.0).tolist() == pytest.approx([0.5, 2.0, 5.0])
    assert noise_level_weight("SNR", snr_B, "v_prediction", 5.0).tolist() == pytest.approx(
        [1 / 3, 2 / 3, 50 / 51]
    )
    assert noise_level_weight("SIGMA", None, "flow", 5.0, sigma_B).tolist() == [0.25, 0.5, 1.0]
    for function, prediction in (("SIGMA", "epsilon"), ("SNR", "flow")):
        with pytest.raises(ValueError, match=function):
            noise_level_weight(function, snr_B, prediction, 5.0, sigma_B)


# -- masks ---------------------------------------------------------------------------------------------------------

DISTANCES = [
    SupervisedOptions(mse_strength=1.0),
    SupervisedOptions(mse_strength=0.0, mae_strength=1.0),
    SupervisedOptions(mse_strength=0.0, log_cosh_strength=1.0),
    SupervisedOptions(mse_strength=0.0, huber_strength=1.0, huber_delta=0.3),
    SupervisedOptions(0.5, 0.4, 0.3, 0.2, 0.1),
]


def predicted_and_target() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, 6, 8, generator=source), torch.randn(3, 4, 6, 8, generator=source)


@pytest.mark.parametrize("options", DISTANCES)
def test_a_white_mask_changes_no_bit(options: SupervisedOptions) -> None:
    predicted, target = predicted_and_target()
    one, other = (predicted.clone().requires_grad_() for _ in range(2))
    plain_B = combined_loss(one, target, options)
    for normalize in (False, True):
        masked_B = combined_loss(other, target, options, torch.ones(3, 1, 6, 8), normalize)
        assert torch.equal(plain_B, masked_B)
    plain_B.sum().backward()
    masked_B.sum().backward()
    assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("options", DISTANCES)
def test_nothing_is_learned_outside_a_mask_of_weight_0(options: SupervisedOptions) -> None:
    predicted, target = predicted_and_target()
    predicted.requires_grad_()
    mask = torch.zeros(3, 1, 6, 8)
    mask[..., :4] = 1.0
    weight = mask_weight(mask, MaskOptions(0.0))
    combined_loss(predicted, target, options, weight).sum().backward()
    assert predicted.grad is not None
    assert (predicted.grad[..., 4:] == 0).all()
    assert (predicted.grad[..., :4] != 0).all()


def test_each_distance_is_weighted_cell_by_cell() -> None:
    predicted, target = predicted_and_target()
    mask = torch.rand(3, 1, 6, 8, generator=torch.Generator().manual_seed(1))
    weight = mask_weight(mask, MaskOptions(0.3))
    assert torch.equal(weight, mask.clamp(0.3, 1.0))
    for options, distance in zip(
        DISTANCES[:3], (torch.square, torch.abs, lambda x: torch.log(torch.cosh(x))), strict=True
    ):
        values = distance((predicted - target).double())
        wanted = (values * weight.double()).sum((1, 2, 3)) / (4 * 6 * 8)
        assert torch.allclose(combined_loss(predicted, target, options, weight).double(), wanted, rtol=1e-5)
        area = weight.double().mean((1, 2, 3))
        normal = combined_loss(predicted, target, options, weight, normalize=True).double()
        assert torch.allclose(normal, wanted / area, rtol=1e-5)


@pytest.mark.parametrize("share", [1, 2, 7])
def test_a_normalised_loss_does_not_depend_on_the_area(share: int) -> None:
    target = torch.zeros(1, 4, 6, 8)
    mask = torch.zeros(1, 1, 6, 8)
    mask[..., :share] = 1.0
    weight = mask_weight(mask, MaskOptions(0.0))
    assert float(combined_loss(target + 0.5, target, SupervisedOptions(), weight, True)) == pytest.approx(
        0.25
    )
    assert float(combined_loss(target + 0.5, target, SupervisedOptions(), weight)) == pytest.approx(
        0.25 * share / 8
    )


def test_masks_without_white_or_black_give_0_and_not_nan() -> None:
    predicted, target = predicted_and_target()
    black = mask_weight(torch.zeros(3, 1, 6, 8), MaskOptions(0.0))
    outside = mask_weight(torch.ones(3, 1, 6, 8), MaskOptions(0.2), outside=True)
    for weight in (black, outside):
        assert (combined_loss(predicted, target, SupervisedOptions(), weight, True) == 0).all()
    assert torch.equal(
        mask_weight(torch.zeros(1, 1, 2, 2), MaskOptions(0.25), outside=True), torch.full((1, 1, 2, 2), 0.75)
    )
