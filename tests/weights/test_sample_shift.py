"""Samples of a denoiser without a scheduler config of its own have the noise levels of its published model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from modules.model.Model import Model
from modules.model.noising.sampling import make_sampler, with_shift
from modules.model.noising.schedule import FlowSchedule
from modules.modelSetup.SampleDenoiser import SampleDenoiser
from modules.trainer.curves import level_curves
from modules.util.config.TrainConfig import TrainConfig
from modules.weights.saving import scheduler_config
from tests.tiny import tiny_folder, tiny_setup
from tests.usual import usual
from tests.weights.test_part_sources import configs_beside, denoiser_file

KEY = "Z_IMAGE"
FILES = [
    ("z_image_bf16", 6.0),
    ("z_image_turbo_bf16", 3.0),
    ("my_own", 6.0),
    ("z_image_de_turbo_v1_bf16", 3.0),
    ("Z-ImageDeTurbo", 3.0),
]


def sampled(model: Model, shift: float) -> bool:
    """Whether samples have the noise levels of the library with this shift."""
    theirs = FlowMatchEulerDiscreteScheduler(shift=shift)
    theirs.set_timesteps(sigmas=[0.75, 0.5])
    ours = tiny_setup(KEY).make_sampler(model, "EULER", 4, (32, 32))
    return bool(torch.isclose(ours.sigmas[1:3], theirs.sigmas[:2]).all())


def whole_file(path: Path) -> Model:
    folder = str(tiny_folder(KEY))
    denoiser_file(KEY, path, "model.diffusion_model.")
    configs_beside(KEY, path, ("transformer",))
    return tiny_setup(KEY).load(str(path), part_sources={"vae": folder, "text_encoder": folder})


@pytest.mark.parametrize(("name", "shift"), usual(FILES, *FILES[1:4]))
def test_a_file_is_sampled_as_the_model_that_its_name_tells(name: str, shift: float, tmp_path: Path) -> None:
    model = whole_file(tmp_path / f"{name}.safetensors")
    assert sampled(model, shift) and scheduler_config(model)["shift"] == shift


def test_a_config_next_to_the_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "z_image_turbo.safetensors"
    place = path.with_name(f"{path.name}.config") / "scheduler" / "scheduler_config.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"shift": 1.5}), encoding="utf-8")
    assert sampled(whole_file(path), 1.5)


@pytest.mark.parametrize(
    ("name", "shift"), usual([*FILES[1:2], FILES[3], ("my_own", None)], FILES[1], ("my_own", None))
)
def test_a_denoiser_of_its_own_in_the_folder_of_another_model(
    name: str, shift: float | None, tmp_path: Path
) -> None:
    folder, own = Path(shutil.copytree(tiny_folder(KEY), tmp_path / "model")), 5.0
    place = folder / "scheduler" / "scheduler_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"shift": own}))
    path = denoiser_file(KEY, tmp_path / f"{name}.safetensors")
    setup = tiny_setup(KEY)
    model = setup.load(str(folder), part_sources={"transformer": str(path)})
    assert sampled(model, own if shift is None else shift)
    assert sampled(setup.load(str(folder)), own)


def test_the_denoiser_of_samples_alone_has_its_own_levels(tmp_path: Path) -> None:
    setup, model = tiny_setup(KEY), whole_file(tmp_path / "z_image.safetensors")
    other = denoiser_file(KEY, tmp_path / "z_image_turbo.safetensors")
    configs_beside(KEY, other, ("transformer",))
    config = TrainConfig.from_dict(
        {"model_type": KEY, "base_model_name": str(tiny_folder(KEY)), "sample_model_name": str(other)}
    )
    model.sample_denoiser = SampleDenoiser.load(setup, model, config)
    with model.as_sampled():
        assert sampled(model, 3.0)
    assert sampled(model, 6.0)


def test_a_fixed_shift_replaces_one_by_size() -> None:
    config = {
        "shift": 1.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 0.9, "shift_terminal": 0.02,
        "time_shift_type": "exponential", "num_train_timesteps": 1000,
    }  # fmt: skip
    assert with_shift(config, 0.0) == config
    theirs = FlowMatchEulerDiscreteScheduler(shift=3.0)
    theirs.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25])
    for made in (config, {"flow_shift": 2.0}):
        for name in ("EULER", "UNIPC"):
            ours = make_sampler(FlowSchedule(), name, 4, with_shift(made, 3.0), 4096, even=True)
            # UniPC begins a thousandth below 1
            assert torch.allclose(ours.sigmas[:4], theirs.sigmas[:4], atol=2e-3), (made, name)


def test_the_drawing_shows_the_levels_of_the_base_that_is_named() -> None:
    low: list[float] = []
    for name in ("Tongyi-MAI/Z-Image-Turbo", "Tongyi-MAI/Z-Image"):
        config = TrainConfig.from_dict({"model_type": KEY, "base_model_name": name})
        low.append(sum(level_curves(config).own.y[:5]) / 5)
    # a shift of s leaves 1 / s of the density at level 0
    assert low == pytest.approx([0.34, 0.18], abs=0.05)
