"""Whole models whose weights are trained in main memory; taken by ``test_another_device.py``."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.model.offloaded import staying_trained
from modules.trainer.memory.memory_plan import Planner
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.load import load_config
from tests.contracts.test_family_training import family_config
from tests.device.plugin import NAME as DEVICE
from tests.tiny import tiny_setup
from tests.trainer.builders import run_here, write_pairs
from tests.usual import usual

WITHIN = 0.05
SIDE = 128
IN_THE_BACKWARD_PASS: dict[str, Any] = {
    "optimizer": {"optimizer": "ADAFACTOR", "fused_back_pass": True, "params": {"scale_parameter": False}},
    "clip_each_weight": True,
}
ROUNDED: dict[str, Any] = {
    "optimizer": {**IN_THE_BACKWARD_PASS["optimizer"], "stochastic_rounding": True},
    "clip_each_weight": True,
    "train_dtype": "BFLOAT_16",
}
WAYS: dict[str, dict[str, Any]] = {
    "adafactor in the backward pass": IN_THE_BACKWARD_PASS,
    "adamw in the backward pass": {
        "optimizer": {"optimizer": "ADAMW", "fused_back_pass": True},
        "clip_grad_norm": 0.0,
    },
    "rounded by chance": ROUNDED,
    "after two passes": {"gradient_accumulation_steps": 2, "clip_grad_norm": 0.0, "ema": "CPU"},
}


def job(folder: Path, fraction: float, key: str = "FLUX_DEV_1", side: int = 32, **changes: Any) -> Path:
    concepts = [{**write_pairs(folder / "data", sizes=((side, side),))[0], "type": "STANDARD"}]
    denoiser = tiny_setup(key).spec.denoiser
    weights = "BFLOAT_16" if changes.get("train_dtype") == "BFLOAT_16" else "FLOAT_32"
    part = {"offload_fraction": fraction, "gradient_checkpointing": True, "weight_dtype": weights}
    whole: dict[str, Any] = {
        "training_method": "FINE_TUNE", "rlhf_enabled": False, "concepts": concepts, "resolution": str(side),
        "max_steps": 3, "output_model_format": "DIFFUSERS", "output_model_destination": str(folder / "out"),
        denoiser: part,
        "sample_after_unit": "NEVER", "samples": [],
    }  # fmt: skip
    return family_config(folder, key, **whole | changes)


def result(folder: Path, key: str = "FLUX_DEV_1") -> dict[str, torch.Tensor]:
    denoiser = tiny_setup(key).spec.denoiser
    found: dict[str, torch.Tensor] = {}
    for file in sorted((folder / "out" / denoiser).glob("*.safetensors")):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("way", usual(WAYS, "rounded by chance"))
def test_the_same_weights_whatever_lies_in_main_memory(way: str, tmp_path: Path) -> None:
    made = {}
    for fraction in (0.0, 0.5, 1.0):
        folder = tmp_path / str(fraction)
        trainer = run_here(job(folder, fraction, **WAYS[way]))
        there = staying_trained(trainer.parts.model.denoiser)
        assert {parameter.device.type for parameter in there} <= {"cpu"}
        state = trainer.parts.optimizer.state
        assert all(
            value.device.type == "cpu" for p in there for value in state[p].values() if torch.is_tensor(value)
        )
        made[fraction] = result(folder), len(there)
    (plain, none), (half, some), (whole, most) = made.values()
    assert 0 == none < some < most
    for name, weight in plain.items():
        assert torch.equal(weight, half[name]) and torch.equal(weight, whole[name]), name


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    run_here(job(tmp_path / "whole", 0.5, **IN_THE_BACKWARD_PASS))
    path = job(tmp_path / "parts", 0.5, **IN_THE_BACKWARD_PASS, backup_after=2, backup_after_unit="STEP")
    run_here(path, "max_steps=2")
    run_here(path, "continue_last_backup=true")
    whole, parts = result(tmp_path / "whole"), result(tmp_path / "parts")
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


@pytest.mark.skipif(DEVICE != "second", reason="counts the test device's bytes")
@pytest.mark.parametrize("fraction", usual([0.5, 1.0], 1.0))
@pytest.mark.parametrize("way", usual(["adafactor in the backward pass", "after two passes"], "after two passes"))
def test_a_run_takes_what_was_predicted(way: str, fraction: float, tmp_path: Path) -> None:
    path = job(tmp_path, fraction, side=SIDE, **{**WAYS[way], "max_steps": 2})
    config = load_config(path, [])
    setup = tiny_setup(config.model_type)
    dry_run = ShapeDryRun(setup, shape_only_model(setup, config), config, cuda=True)
    plan = Planner(config, dry_run, cuda=False).plan("FULL_CONCURRENT")
    predicted = {phase.name: phase.total for phase in plan.phases}["training step"]
    run_here(path, "only_cache=true")
    device = torch.second  # type: ignore[attr-defined]
    gc.collect()
    before = device.live()
    device.reset_peak()
    run_here(path)
    taken = int(device.peak()) - int(before)
    print(f"{way} {fraction}: predicted {predicted}, taken {taken}, ratio {predicted / taken:.3f}")
    assert predicted == pytest.approx(taken, rel=WITHIN)
