"""Learning rate schedules against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.trainer.assembly import check_settings
from modules.trainer.callbacks import Callback
from modules.trainer.optim.LearningRateSchedule import SHAPES, LearningRateSchedule
from modules.util.config.settings import is_visible, iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import LearningRateScheduler as Kind
from modules.util.errors import ConfigError
from modules.util.TrainProgress import TrainProgress
from tests.trainer.builders import run_here, write_config


class Rates(Callback):
    """Keeps the learning rate of every step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        self.rates.append(metrics["lr/unet_lora"])


def factors(kind: Kind, steps: tuple[int, ...], total: int = 100, **settings: Any) -> list[float]:
    schedule = LearningRateSchedule(kind, total, **settings)
    return [schedule.factor(step) for step in steps]


def test_each_name_has_a_shape() -> None:
    assert set(SHAPES) == set(Kind)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        # at steps 0, 25, 50, 75 and 100 (the end) of 100
        (Kind.CONSTANT, {}, [1, 1, 1, 1, 1]),
        (Kind.CONSTANT, {"min_factor": 0.3}, [1, 1, 1, 1, 1]),
        (Kind.LINEAR, {}, [1, 0.75, 0.5, 0.25, 0]),
        (Kind.LINEAR, {"min_factor": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
        (Kind.COSINE, {}, [1, 0.8535533905932737, 0.5, 0.14644660940672627, 0]),
        (Kind.COSINE, {"min_factor": 0.5}, [1, 0.9267766952966369, 0.75, 0.5732233047033631, 0.5]),
        # 1.5 waves: low at a third, high at two thirds
        (
            Kind.COSINE_WITH_RESTARTS,
            {"cycles": 2.0},
            [1, 0.14644660940672627, 0.5, 0.8535533905932737, 0],
        ),
        (Kind.COSINE_WITH_RESTARTS, {"cycles": 1.0}, [1, 0.8535533905932737, 0.5, 0.14644660940672627, 0]),
        (Kind.COSINE_WITH_HARD_RESTARTS, {"cycles": 2.0}, [1, 0.5, 1, 0.5, 0]),
        (Kind.COSINE_WITH_HARD_RESTARTS, {"cycles": 4.0}, [1, 1, 1, 1, 0]),
        # (1 - x) / (1 - x / 2)
        (Kind.REX, {}, [1, 6 / 7, 2 / 3, 2 / 5, 0]),
    ],
)
def test_values_over_a_run(kind: Kind, settings: dict[str, float], expected: list[float]) -> None:
    assert factors(kind, (0, 25, 50, 75, 100), **settings) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", list(Kind))
def test_warm_up_rises_to_the_full_rate_and_the_shape_starts_after_it(kind: Kind) -> None:
    assert factors(kind, (0, 1, 2, 3, 4), warmup=4.0) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("warmup", "total", "steps"),
    [(0.0, 100, 0), (0.1, 100, 10), (0.125, 100, 12), (1.0, 100, 100), (2.0, 100, 2), (500.0, 100, 500)],
)
def test_up_to_one_it_is_a_share_of_the_run(warmup: float, total: int, steps: int) -> None:
    schedule = LearningRateSchedule(Kind.CONSTANT, total, warmup)
    assert schedule.warmup_steps == steps
    if steps:
        assert schedule.factor(steps - 1) == pytest.approx(steps / (steps + 1))
    assert schedule.factor(steps) == 1.0


def test_the_shape_covers_what_the_warm_up_leaves() -> None:
    assert factors(Kind.LINEAR, (20, 60, 99, 100), warmup=20.0) == pytest.approx([1, 0.5, 1 / 80, 0])


def test_past_the_end_it_stays_where_it_was() -> None:
    assert factors(Kind.LINEAR, (100, 101, 10_000), min_factor=0.1) == pytest.approx([0.1] * 3)
    assert factors(Kind.COSINE_WITH_HARD_RESTARTS, (150,), cycles=3.0) == [0.0]


@pytest.mark.parametrize("kind", list(Kind))
def test_a_run_of_one_step_trains_at_the_full_rate(kind: Kind) -> None:
    assert factors(kind, (0,), total=1, cycles=3.0) == [1.0]


@given(
    kind=st.sampled_from(list(Kind)),
    total=st.integers(1, 2000),
    warmup=st.floats(0, 3000),
    cycles=st.floats(1, 20),
    low=st.floats(0, 1),
    step=st.integers(0, 4000),
)
def test_factors_are_finite_and_between_the_lowest_and_one(
    kind: Kind, total: int, warmup: float, cycles: float, low: float, step: int
) -> None:
    schedule = LearningRateSchedule(kind, total, warmup, cycles, low)
    factor = schedule.factor(step)
    assert math.isfinite(factor)
    assert factor <= 1.0 + 1e-12
    if step < schedule.warmup_steps:
        assert factor > 0
    else:
        assert factor >= low - 1e-12


def test_settings_come_from_the_config() -> None:
    config = TrainConfig.from_dict(
        {
            "learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS",
            "learning_rate_warmup_steps": 0.25,
            "learning_rate_cycles": 3.0,
            "learning_rate_min_factor": 0.1,
        },
    )
    expected = LearningRateSchedule(Kind.COSINE_WITH_HARD_RESTARTS, 40, 0.25, 3.0, 0.1)
    assert LearningRateSchedule.from_config(config, 40) == expected


def test_rex_of_another_constant() -> None:
    (middle,) = factors(Kind.REX, (50,), rex_d=0.9)
    assert middle == pytest.approx(0.909, abs=5e-4)
    assert factors(Kind.REX, (50,)) == pytest.approx([0.667], abs=5e-4)
    assert factors(Kind.REX, (0, 25, 100), rex_d=0.0) == pytest.approx([1, 0.75, 0])


def test_restarts_that_end_high_have_whole_waves() -> None:
    steps = (0, 25, 50, 75, 100)
    made = factors(Kind.COSINE_WITH_RESTARTS, steps, cycles=2.0, ends_high=True)
    assert made == pytest.approx([0.5 * (1 + math.cos(2 * math.pi * 2 * step / 100)) for step in steps])
    assert made[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    ("name", "value"),
    [("cycles", 3.0), ("min_factor", 0.5), ("rex_d", 0.9), ("ends_high", True)],
)
def test_a_number_is_shown_where_it_acts(name: str, value: Any, kind: Kind) -> None:
    steps = tuple(range(1, 100))
    curved = {"custom": tuple(1 - step / 100 for step in range(100))} if kind is Kind.CUSTOM else {}
    acts = factors(kind, steps, **curved) != factors(kind, steps, **curved, **{name: value})
    (setting,) = (one for one in iter_settings(TrainConfig) if one.path == f"learning_rate_{name}")
    assert is_visible(setting.visible, {"learning_rate_scheduler": kind.value}.__getitem__) == acts


def test_adafactor_leaves_the_rate_to_its_optimizer() -> None:
    assert factors(Kind.ADAFACTOR, (0, 50, 100)) == [1, 1, 1]


CLASS = "custom_learning_rate_scheduler"
SCHEDULERS = {
    "OneCycleLR": (
        "max_lr=%LR%; total_steps=%SCHEDULER_STEPS%; pct_start=0.4",
        {"max_lr": 2e-4, "total_steps": 40, "pct_start": 0.4},
    ),
    "CosineAnnealingLR": ("T_max = %TOTAL_STEPS%; eta_min=1e-6", {"T_max": 40, "eta_min": 1e-6}),
    "MultiStepLR": ("milestones=[5, 20]; gamma=0.5", {"milestones": [5, 20], "gamma": 0.5}),
    "StepLR": ("step_size=%STEPS_PER_EPOCH%", {"step_size": 14}),
    "LinearLR": ("total_iters=%EPOCHS%", {"total_iters": 3}),
}  # fmt: skip


def custom(name: str, params: str, **settings: Any) -> TrainConfig:
    return TrainConfig.from_dict({
        "learning_rate": 2e-4, "learning_rate_scheduler": "CUSTOM", CLASS: name, "scheduler_params": params,
        "epochs": 3, **settings,
    })  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_class_of_torch_gives_its_own_rates_at_every_step(name: str) -> None:
    text, arguments = SCHEDULERS[name]
    config = custom(f"torch.optim.lr_scheduler.{name}", text)
    schedule = LearningRateSchedule.from_config(config, 40)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2e-4, momentum=0.9)
    theirs = getattr(torch.optim.lr_scheduler, name)(optimizer, **arguments)
    for step in range(40):
        assert 2e-4 * schedule.factor(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), step
        optimizer.step()
        theirs.step()
    assert len({schedule.factor(step) for step in range(40)}) > 2


def test_the_steps_of_an_epoch_are_those_of_the_data(tmp_path: Path) -> None:
    """A run of max_steps has as many epochs as it needs, whatever the setting says."""
    told = Rates()
    path = write_config(
        tmp_path, max_steps=7, epochs=2, learning_rate_scheduler="CUSTOM",
        custom_learning_rate_scheduler="torch.optim.lr_scheduler.StepLR",
        scheduler_params="step_size=%STEPS_PER_EPOCH%; gamma=0.5",
    )  # fmt: skip
    trainer = run_here(path, callback=told)
    assert trainer.parts.loader.steps_per_epoch == 3
    assert told.rates == [1e-3 * factor for factor in (1, 1, 1, 0.5, 0.5, 0.5, 0.25)]
    words = "step_size=%EPOCHS%; gamma=0.5"
    config = custom("torch.optim.lr_scheduler.StepLR", words, max_steps=40)
    schedule = LearningRateSchedule.from_config(config, 40, epoch_steps=10)
    assert [schedule.factor(step) for step in (3, 4)] == [1.0, 0.5]


def test_a_class_begins_after_the_warm_up() -> None:
    text = "max_lr=%LR%; total_steps=%SCHEDULER_STEPS%"
    config = custom("torch.optim.lr_scheduler.OneCycleLR", text, learning_rate_warmup_steps=8.0)
    late, plain = (
        LearningRateSchedule.from_config(config, 40),
        custom("torch.optim.lr_scheduler.OneCycleLR", text),
    )
    alone = LearningRateSchedule.from_config(plain, 32)
    assert [late.factor(8 + step) for step in range(32)] == [alone.factor(step) for step in range(32)]
    assert late.factor(7) == 8 / 9


@pytest.mark.parametrize(
    ("name", "params", "field", "words"),
    [
        ("", "", CLASS, "is not a learning rate scheduler"),
        ("OneCycleLR", "", CLASS, "is not a learning rate scheduler"),
        ("torch.optim.lr_scheduler.NoneSuch", "", CLASS, "there is no class"),
        ("no_such_package.Class", "", CLASS, "there is no class"),
        ("..Class", "", CLASS, "there is no class"),
        ("tests.trainer.optim.leaves.Class", "", CLASS, "SystemExit"),
        ("torch.optim.SGD", "", CLASS, "is not a learning rate scheduler"),
        ("torch.optim.lr_scheduler.ReduceLROnPlateau", "", CLASS, "validation loss"),
        ("torch.optim.lr_scheduler.StepLR", "", "scheduler_params", "step_size"),
        ("torch.optim.lr_scheduler.StepLR", "step=3", "scheduler_params", "step"),
        ("torch.optim.lr_scheduler.StepLR", "step_size", "scheduler_params", "is not name=value"),
        ("torch.optim.lr_scheduler.StepLR", "step_size=3; step_size=4", "scheduler_params", "given twice"),
        ("torch.optim.lr_scheduler.StepLR", "step_size=open('x')", "scheduler_params", "neither a value"),
        ("torch.optim.lr_scheduler.StepLR", "step_size=3; gamma=-1", "scheduler_params", "negative or NaN"),
        (
            "torch.optim.lr_scheduler.OneCycleLR",
            "max_lr=1; total_steps=9",
            "scheduler_params",
            "failed at step 10",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_told_before_the_model_is_loaded(
    name: str, params: str, field: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_settings(custom(name, params, samples=[], base_model_name="/nowhere", max_steps=20))
    assert caught.value.field == field


def test_the_length_of_a_class_is_judged_by_the_length_of_the_run() -> None:
    name, text = "torch.optim.lr_scheduler.OneCycleLR", "max_lr=%LR%; total_steps=40"
    plain = {"samples": [], "base_model_name": "/nowhere"}
    check_settings(custom(name, text, **plain))
    check_settings(custom(name, text, max_steps=40, **plain))
    with pytest.raises(ConfigError, match="failed at step 41 of 60"):
        check_settings(custom(name, text, max_steps=60, **plain))
    with pytest.raises(ConfigError, match="failed at step 41 of 60"):
        LearningRateSchedule.from_config(custom(name, text), 60)
