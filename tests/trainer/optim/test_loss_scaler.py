"""The factor on float16 losses: halved on overflow, doubled after a while without."""

from __future__ import annotations

import json
import math

import pytest
import torch

from modules.trainer.optim.LossScaler import GROW_AFTER, LARGEST, START, LossScaler


def test_switched_off_it_is_one_for_ever() -> None:
    scaler = LossScaler(False)
    gradient = torch.tensor([1.0, 2.0])
    for finite in [False] * 5 + [True] * (GROW_AFTER + 1):
        scaler.update(finite)
    scaler.unscale([gradient])
    assert scaler.scale == 1.0
    assert not scaler.searching
    assert gradient.tolist() == [1.0, 2.0]


def test_it_halves_on_overflow_and_not_below_one() -> None:
    scaler = LossScaler(True)
    seen = []
    for _ in range(20):
        seen.append((scaler.scale, scaler.searching))
        scaler.update(False)
    assert seen[:3] == [(START, True), (START / 2, True), (START / 4, True)]
    assert seen[-1] == (1.0, False)


def test_it_doubles_after_so_many_good_steps_in_a_row_and_has_a_limit() -> None:
    scaler = LossScaler(True)
    for _ in range(GROW_AFTER - 1):
        scaler.update(True)
    assert scaler.scale == START
    scaler.update(True)
    assert scaler.scale == 2 * START
    scaler.update(False)
    assert scaler.scale == START
    for _ in range(GROW_AFTER - 1):
        scaler.update(True)
    assert scaler.scale == START  # counted again
    for _ in range(20 * GROW_AFTER):
        scaler.update(True)
    assert scaler.scale == LARGEST


def test_unscaling_gives_back_the_gradients_exactly() -> None:
    scaler = LossScaler(True)
    gradients = [torch.tensor([0.1, -3.0]), torch.tensor([1e-6])]
    scaled = [gradient * scaler.scale for gradient in gradients]
    scaler.unscale(scaled)
    assert all(torch.equal(a, b) for a, b in zip(scaled, gradients, strict=True))
    scaler.unscale([])


def test_small_float16_gradients_survive_by_it() -> None:
    weight = torch.tensor([1.0], dtype=torch.float16, requires_grad=True)
    tiny = 2.0**-30  # nothing float16 can hold
    (weight * tiny).float().sum().backward()
    assert weight.grad is not None
    assert float(weight.grad) == 0.0
    weight.grad = None
    scaler = LossScaler(True)
    (weight.float() * tiny * scaler.scale).sum().backward()
    gradient = weight.grad
    assert gradient is not None
    unscaled = gradient.float()
    scaler.unscale([unscaled])
    assert float(unscaled) == tiny


def test_it_resumes_from_json() -> None:
    straight, resumed = LossScaler(True), LossScaler(True)
    for step in range(GROW_AFTER + 100):
        straight.update(step != 50)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for _ in range(GROW_AFTER):
        straight.update(True)
        resumed.update(True)
        assert straight.scale == resumed.scale
    assert straight.scale == 2 * START


@pytest.mark.parametrize(
    "state",
    [
        {"scale": math.nan, "good": 0},
        {"scale": math.inf, "good": 0},
        {"scale": 0.0, "good": 0},
        {"scale": -8.0, "good": 0},
        {"scale": 8.0, "good": -1},
    ],
)
def test_a_damaged_state_is_refused(state: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="damaged"):
        LossScaler(True).load_state_dict(state)


def test_a_state_is_no_matter_where_it_is_off() -> None:
    scaler = LossScaler(False)
    scaler.load_state_dict({"scale": 8.0, "good": 3})
    assert scaler.scale == 1.0
