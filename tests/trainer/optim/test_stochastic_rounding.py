"""Steps of 16 bit weights that are rounded by chance: exact on average, and the same in every run."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from modules.trainer.memory.memory_plan import state_bytes
from modules.trainer.optim.FusedSteps import FusedSteps
from modules.trainer.optim.optimizers import CLASSES, create_optimizer
from modules.trainer.optim.StochasticRounding import StochasticRounding, round_by_chance
from modules.util.config.load import find_problems
from modules.util.config.rules.optimizer_rules import ROUNDED
from modules.util.config.rules.rules import STEP_ALONE
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.rng import digest64, hashed_bits


def test_many_small_steps_arrive_where_plain_rounding_stands_still() -> None:
    plain = torch.ones((), dtype=torch.bfloat16)
    rounded = torch.ones(20_000, dtype=torch.bfloat16)
    for step in range(100):
        plain = plain + 1e-4
        rounded = round_by_chance(rounded.float() + 1e-4, digest64("test", step))
    assert float(plain) == 1.0
    # one step of bfloat16 above 1 is 1/128, so a weight's deviation is about 0.009
    assert float(rounded.double().mean()) == pytest.approx(1.01, abs=4 * 0.009 / 20_000**0.5)


def test_the_mean_is_exact_and_the_values_are_the_two_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(200, generator=generator) * 10.0 ** torch.randint(-6, 6, (200,), generator=generator)
    draws, total = 1500, torch.zeros(200, dtype=torch.float64)
    below = (values.view(torch.int32) & -0x10000).view(torch.float32)
    above = ((values.view(torch.int32) & -0x10000) + 0x10000).view(torch.float32)
    for number in range(draws):
        made = round_by_chance(values, digest64("mean", number)).float()
        assert bool(((made == below) | (made == above)).all())
        total += made.double()
    gap = (above - below).abs().double()
    share = ((values - below) / (above - below)).double()
    deviation = gap * (share * (1 - share) / draws).sqrt() + 1e-30
    assert float(((total / draws - values.double()).abs() / deviation).max()) < 4.5


def test_what_fits_stays_and_so_do_nan_and_infinity() -> None:
    exact = torch.tensor([0.0, -0.0, 1.0, -1.5, 3.0e38, float("inf"), float("-inf")]).bfloat16()
    for key in range(50):
        assert torch.equal(round_by_chance(exact.float(), digest64(key)), exact)
    assert bool(round_by_chance(torch.tensor([float("nan")] * 9), 5).isnan().all())


def test_random_bits_are_those_of_the_formula_and_look_like_chance() -> None:
    key = digest64("bits", 7)
    place = np.arange(3, 3 + 50_000, dtype=np.uint64)
    value = (place + np.uint64(key & 0xFFFFFFFF)) & np.uint64(0xFFFFFFFF)
    for mask in (0, key >> 32):
        value ^= np.uint64(mask)
        for _ in range(2):
            value = ((value ^ (value >> np.uint64(16))) * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
        value ^= value >> np.uint64(16)
    found = hashed_bits(key, 3, 50_000, 16)
    assert np.array_equal((value >> np.uint64(8)) & np.uint64(0xFFFF), found.numpy().astype(np.uint64))
    counts = torch.bincount(found >> 8, minlength=256).double()
    expected = 50_000 / 256
    assert 150 < float(((counts - expected) ** 2 / expected).sum()) < 380  # chi-square of 255 degrees
    other = hashed_bits(digest64("bits", 8), 3, 50_000, 16)
    together = torch.corrcoef(torch.stack([found, other, found.roll(1), found.roll(1024)]).double())
    assert float((together - torch.eye(4)).abs().max()) < 0.03


def test_large_tensors_are_rounded_in_pieces_with_the_bits_of_one_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = torch.full((200,), 1.001)
    whole = round_by_chance(values, 11)
    monkeypatch.setattr("modules.trainer.optim.StochasticRounding.CHUNK", 64)
    assert torch.equal(round_by_chance(values, 11), whole)
    tail = hashed_bits(11, 128, 72, 16).to(torch.int32) + values[:72].view(torch.int32)
    assert torch.equal(whole[128:].float(), (tail & -0x10000).view(torch.float32))


def pieces() -> list[tuple[str, torch.nn.Parameter]]:
    generator = torch.Generator().manual_seed(2)
    shapes = {"matrix": (6, 5), "row": (7,), "in 32 bits": (4, 3)}
    return [
        (
            name,
            torch.nn.Parameter(
                torch.randn(shape, generator=generator).to(torch.float32 if "32" in name else torch.bfloat16)
            ),
        )
        for name, shape in shapes.items()
    ]


def gradient(parameter: torch.Tensor, step: int) -> torch.Tensor:
    return (parameter.detach().float() * 0.3 + 0.1 * step).to(parameter.dtype)


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_step_is_that_of_the_class_in_32_bits_rounded(kind: Optimizer) -> None:
    named = pieces()
    config = OptimizerConfig(optimizer=kind, stochastic_rounding=True)
    rounding = StochasticRounding(create_optimizer(config, [("all", 1e-2, named)]), named, 5)
    twins = [(name, torch.nn.Parameter(p.detach().float())) for name, p in named]
    package, class_name = CLASSES[kind]
    direct: Any = getattr(importlib.import_module(package), class_name)([p for _, p in twins], lr=1e-2)
    for step in range(4):
        for (_, parameter), (_, twin) in zip(named, twins, strict=True):
            parameter.grad = gradient(parameter, step)
            twin.grad = parameter.grad.float()
        rounding.begin(step)
        rounding.step()
        direct.step()
        for (name, parameter), (_, twin) in zip(named, twins, strict=True):
            if parameter.dtype is torch.bfloat16:
                twin.data = round_by_chance(twin.data, digest64("rounding", 5, step, name)).float()
            torch.testing.assert_close(parameter.float(), twin.detach(), rtol=1e-5, atol=1e-6)
            assert parameter.dtype is (torch.float32 if "32" in name else torch.bfloat16)


@pytest.mark.parametrize("kind", [one for one in ROUNDED if one in STEP_ALONE])
def test_steps_in_the_backward_pass_round_alike(kind: Optimizer) -> None:
    results = []
    for fused in (False, True):
        named = pieces()
        optimizer = create_optimizer(OptimizerConfig(optimizer=kind), [("all", 1e-2, named)])
        rounding = StochasticRounding(optimizer, named, 5)
        steps = FusedSteps(optimizer, rounding=rounding) if fused else None
        for step in range(3):
            rounding.begin(step)
            sum((p.float() * 0.5 + step).square().sum() for _, p in named).backward()
            if steps is None:
                rounding.step()
                optimizer.zero_grad()
            assert all(p.grad is None for _, p in named)
        results.append([p.detach() for _, p in named])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_training_in_16_bits_comes_as_far_as_in_32() -> None:
    wanted = torch.randn(64, 32, generator=torch.Generator().manual_seed(4))

    def loss_after(dtype: torch.dtype, rounds: bool) -> float:
        parameter = torch.nn.Parameter((wanted + 1.0).to(dtype))
        optimizer = create_optimizer(OptimizerConfig(), [("all", 1e-3, [("one", parameter)])])
        rounding = StochasticRounding(optimizer, [("one", parameter)], 1)
        for step in range(300):
            parameter.grad = (parameter.detach().float() - wanted).to(dtype)
            rounding.begin(step)
            rounding.step() if rounds else optimizer.step()
        return float((parameter.detach().float() - wanted).square().mean())

    exact, rounded, plain = (
        loss_after(torch.float32, False),
        loss_after(torch.bfloat16, True),
        loss_after(torch.bfloat16, False),
    )
    assert rounded == pytest.approx(exact, rel=0.02)
    assert plain > 1.2 * exact


def test_the_state_has_32_bits_and_is_predicted_so() -> None:
    config = TrainConfig(optimizer=OptimizerConfig(optimizer=Optimizer.ADAMW))
    assert state_bytes(config, (8, 8), torch.bfloat16) == 2 * 2 * 64
    config.optimizer.stochastic_rounding = True
    assert state_bytes(config, (8, 8), torch.bfloat16) == 2 * 4 * 64


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        ({"unet": {"weight_dtype": "BFLOAT_16"}}, []),
        ({"unet": {"weight_dtype": "FLOAT_32"}}, ["optimizer.stochastic_rounding"]),
        ({"unet": {"weight_dtype": "FLOAT_16"}}, ["unet.weight_dtype"]),
        ({"training_method": "LORA", "lora_weight_dtype": "BFLOAT_16"}, []),
        ({"training_method": "LORA", "unet": {"weight_dtype": "BFLOAT_16"}}, ["optimizer.stochastic_rounding"]),
    ],
)  # fmt: skip
def test_weights_that_cannot_be_rounded_are_refused(data: dict[str, Any], fields: list[str]) -> None:
    given = {"training_method": "FINE_TUNE", "text_encoder": {"train": False}, "rlhf_enabled": False, **data}
    given["optimizer"] = {"stochastic_rounding": True}
    errors = find_problems(TrainConfig.from_dict(given)).errors
    assert [error.field for error in errors] == fields
    given["optimizer"] = {"stochastic_rounding": True, "optimizer": "PRODIGY"}
    assert "optimizer.stochastic_rounding" in [
        error.field for error in find_problems(TrainConfig.from_dict(given)).errors
    ]
