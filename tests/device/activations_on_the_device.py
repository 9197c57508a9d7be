"""Runs whose checkpointed activations lie in main memory; taken by ``test_another_device.py``."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.trainer.memory.memory_plan import Planner
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.load import load_config
from tests.contracts.test_family_training import family_config
from tests.device.plugin import NAME as DEVICE
from tests.tiny import tiny_setup
from tests.trainer.builders import run_here, write_pairs
from tests.usual import usual

SIDE, WITHIN = 128, 0.05
KEYS = ("FLUX_DEV_1", "STABLE_DIFFUSION_XL_10_BASE")


def job(folder: Path, key: str, offloaded: bool, **changes: Any) -> Path:
    concepts = [{**write_pairs(folder / "data", 4, sizes=((SIDE, SIDE),))[0], "type": "STANDARD"}]
    part = {"gradient_checkpointing": True, "activation_offloading": offloaded}
    return family_config(
        folder, key, concepts=concepts, rlhf_enabled=False, resolution=str(SIDE), batch_size=2, epochs=1,
        sample_after_unit="NEVER", samples=[], **{tiny_setup(key).spec.denoiser: part}, **changes,
    )  # fmt: skip


def peak(path: Path) -> int:
    """Bytes of a run's steps on the device at most, with everything encoded before."""
    run_here(path, "only_cache=true")
    device = torch.second  # type: ignore[attr-defined]
    gc.collect()
    before = int(device.live())
    device.reset_peak()
    run_here(path)
    return int(device.peak()) - before


def predicted(path: Path) -> int:
    config = load_config(path, [])
    setup = tiny_setup(config.model_type)
    dry_run = ShapeDryRun(setup, shape_only_model(setup, config), config, cuda=True)
    plan = Planner(config, dry_run, cuda=False).plan("FULL_CONCURRENT")
    return {phase.name: phase.total for phase in plan.phases}["training step"]


@pytest.mark.skipif(DEVICE != "second", reason="counts the test device's bytes")
@pytest.mark.parametrize("key", usual(KEYS, "FLUX_DEV_1"))
def test_less_is_on_the_device_as_predicted_and_the_weights_are_the_same(key: str, tmp_path: Path) -> None:
    jobs = [job(tmp_path / str(offloaded), key, offloaded) for offloaded in (False, True)]
    stay, leave = (peak(path) for path in jobs)
    expected = [predicted(path) for path in jobs]
    print(f"{key}: on the device {stay}, in main memory {leave}, predicted {expected}")
    assert leave < stay
    assert expected == pytest.approx([stay, leave], rel=WITHIN)
    one, other = (load_file(next(path.parent.glob("out*.safetensors"))) for path in jobs)
    assert (
        all(torch.equal(weight, other[name]) for name, weight in one.items()) and one.keys() == other.keys()
    )
