"""The curves that the window draws are made of the numbers that training uses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.model.noising.noise import noise_level
from modules.modelSetup import training
from modules.modelSetup.training import noise_options
from modules.trainer import assembly
from modules.trainer.curve_picture import BOTTOM, HEIGHT, density_picture
from modules.trainer.curves import BINS, DRAWS, Curve, level_curves, rate_curve
from modules.trainer.optim.LearningRateSchedule import LearningRateSchedule
from modules.trainer.optim.optimizers import create_optimizer
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import TimestepDistribution
from modules.util.errors import ConfigError
from modules.util.rng import generator
from scripts import curves as script
from tests.source_tree import ROOT
from tests.tiny import small_folder, tiny_setup


def config_of(**data: Any) -> TrainConfig:
    return TrainConfig.from_dict(data)


@pytest.mark.parametrize(
    ("family", "resolution", "shift"),
    [
        *(("FLUX_DEV_1", side, shift) for side, shift in (("512", 1.878), ("768", 2.332), ("1024, 512", 3.158))),
        *(("KREA_2", side, shift) for side, shift in (("512", 1.788), ("768", 2.048), ("1024", 2.475))),
    ],
)
def test_the_shift_by_size_is_the_one_of_the_published_model(family: str, resolution: str, shift: float) -> None:
    made = level_curves(config_of(model_type=family, resolution=resolution, dynamic_timestep_shifting=True))
    assert made.shift == pytest.approx(shift, abs=1e-3)
    assert made.drawn == made.own  # uniform levels, shifted as the model shifts its own


def test_the_density_is_that_of_draws_of_training() -> None:
    config = config_of(
        timestep_distribution="LOGIT_NORMAL", noising_bias=0.5, timestep_shift=2.0, min_noising_strength=0.2
    )
    made = level_curves(config)
    uniform_B = torch.rand(DRAWS, generator=generator("curves", 0), dtype=torch.float64)
    level_B = noise_level(uniform_B, noise_options(config))
    counted = [int(((level_B * BINS).long() == index).sum()) for index in range(BINS)]
    assert made.drawn.y == pytest.approx([count * BINS / DRAWS for count in counted])
    assert not any(made.drawn.y[: BINS // 5]) and (made.shift, made.size) == (2.0, 512)


@pytest.mark.parametrize(
    ("family", "low"),
    [
        ("STABLE_DIFFUSION_15", 1.0), ("STABLE_DIFFUSION_3", 0.34), ("CHROMA_1", 0.56), ("KREA_2", 0.59),
        ("FLUX_2", 0.2), ("IDEOGRAM_4", 0.72),
    ],
)  # fmt: skip
def test_the_models_own_levels_have_its_shift(family: str, low: float) -> None:
    """Shift 3 leaves 1/3 of the density at level 0, a discrete schedule is even. Chroma's samples are shifted by size,
    though its training cannot be; those of FLUX.2 by more than its training; Ideogram's are a logit-normal.
    """
    made = level_curves(config_of(model_type=family))
    assert sum(made.own.y[:5]) / 5 == pytest.approx(low, abs=0.08)


def test_the_own_levels_of_a_fast_model_are_those_of_its_few_steps() -> None:
    """The shift of FLUX.2's levels falls with the number of steps: 4 for klein, 50 for the model it was made from."""
    few, many = (
        sum(level_curves(config_of(model_type="FLUX_2", base_model_name=f"black-forest-labs/{name}")).own.y[:5]) / 5
        for name in ("FLUX.2-klein-4B", "FLUX.2-klein-base-4B")
    )
    assert (few, many) == (pytest.approx(0.136, abs=0.03), pytest.approx(0.2, abs=0.03))


@pytest.mark.parametrize(
    "data",
    [
        {"learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS", "learning_rate_cycles": 3.0},
        {"learning_rate_scheduler": "REX", "learning_rate_rex_d": 0.9, "learning_rate_warmup_steps": 20.0},
        {
            "learning_rate_scheduler": "CUSTOM",
            "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.OneCycleLR",
            "scheduler_params": "max_lr=%LR%; total_steps=%SCHEDULER_STEPS%",
        },
    ],
    ids=lambda data: str(data["learning_rate_scheduler"]),
)
def test_the_rate_is_that_of_each_step(data: dict[str, Any]) -> None:
    config = config_of(**data)
    schedule, made = LearningRateSchedule.from_config(config, 300), rate_curve(config, 300)
    assert made.x == [float(step + 1) for step in range(300)]
    assert made.y == [config.learning_rate * schedule.factor(step) for step in range(300)]
    long = rate_curve(config_of(learning_rate_scheduler="LINEAR"), 100_000)
    assert len(long.x) <= 601 and long.x[-1] == 100_000 and long.y == sorted(long.y, reverse=True)


def test_a_class_is_told_the_steps_that_an_epoch_has() -> None:
    """A run of max_steps has as many epochs as it needs, whatever the setting says."""
    asked = {
        "config": {
            "max_steps": 7, "epochs": 2, "learning_rate": 1e-3, "learning_rate_scheduler": "CUSTOM",
            "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.StepLR",
            "scheduler_params": "step_size=%STEPS_PER_EPOCH%; gamma=0.5",
        },
        "steps": 7,
        "steps_per_epoch": 3,
    }  # fmt: skip
    assert script.answer(asked)["rate"]["y"] == [1e-3 * factor for factor in (1, 1, 1, 0.5, 0.5, 0.5, 0.25)]


def test_the_rate_is_scaled_as_that_of_the_optimizer() -> None:
    config = config_of(
        base_model_name=str(small_folder()), training_method="LORA", train_dtype="FLOAT_32", batch_size=2,
        gradient_accumulation_steps=3, learning_rate_scaler="GLOBAL_BOTH",
    )  # fmt: skip
    model = training.load_model(tiny_setup(), config, parts=("unet",))
    training.attach_or_unfreeze(model, config)
    basis: Any = SimpleNamespace(config=config, model=model, processes=SimpleNamespace(world_size=1))
    optimizer = create_optimizer(config.optimizer, assembly._groups(basis))
    assert rate_curve(config, 2).y == [optimizer.param_groups[0]["initial_lr"]] * 2
    assert rate_curve(config, 2).y[0] > config.learning_rate


def test_a_class_that_is_not_there_is_an_error() -> None:
    wrong = {"learning_rate_scheduler": "CUSTOM", "custom_learning_rate_scheduler": "torch.nothing.Here"}
    with pytest.raises(ConfigError, match="no class"):
        rate_curve(config_of(**wrong), 10)


SCHEDULES = """
from torch.optim.lr_scheduler import LambdaLR

class Loud(LambdaLR):
    def __init__(self, optimizer):
        print("hello")
        super().__init__(optimizer, lambda step: 1.0)

class Leaving(LambdaLR):
    def __init__(self, optimizer):
        raise SystemExit("gone")
"""


@pytest.mark.slow
def test_the_program_answers_line_by_line(tmp_path: Path) -> None:
    """Above 5 s on a busy machine: it starts Python with torch, as the window does."""
    (tmp_path / "my_schedules.py").write_text(SCHEDULES)
    custom = [
        {"learning_rate_scheduler": "CUSTOM", "custom_learning_rate_scheduler": name}
        for name in ("no.such.Class", "my_schedules.Loud", "my_schedules.Leaving")
    ]
    asked = "".join(
        json.dumps({"number": number, "config": data, "steps": 10}) + "\n"
        for number, data in enumerate(({}, *custom))
    )
    said = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "curves.py")], input=asked, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    first, second, loud, leaving = made = [json.loads(line) for line in said.stdout.splitlines()]
    assert [one["number"] for one in made] == [0, 1, 2, 3]
    assert first["rate"]["y"] == [1e-4] * 10 and first["levels"]["shift"] == 1.0
    assert "no.such.Class" in second["rate"]["error"] and "drawn" in second["levels"]
    assert loud["rate"] == first["rate"] and "hello" in said.stderr
    assert "my_schedules.Leaving failed: gone" in leaving["rate"]["error"]


def test_the_picture_of_a_density_starts_at_zero() -> None:
    densities = {"even <1>": Curve([0.1, 0.9], [1.0, 1.0]), "steep": Curve([0.1, 0.9], [0.0, 2.0])}
    even, steep = re.findall(r'points="([^"]*)"', made := density_picture(densities))
    first, last = ([float(one.split(",")[1]) for one in points.split()] for points in (even, steep))
    assert first[0] == first[1] == sum(last) / 2
    assert last[0] == HEIGHT - BOTTOM
    assert "even &lt;1&gt;" in made and "<1>" not in made


def test_the_picture_in_the_documents_shows_every_distribution() -> None:
    assert {name for name, *_ in script.DRAWN} == set(TimestepDistribution)
    drawn = (ROOT / "docs/images/noise-levels.svg").read_text(encoding="utf-8")
    assert [name for name in TimestepDistribution if f">{name}" not in drawn] == []
