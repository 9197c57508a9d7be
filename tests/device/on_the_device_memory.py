"""The memory a whole run takes of a device, compared with the prediction; taken by ``test_another_device.py``."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.trainer.memory.memory_plan import MemoryPlan, Planner
from modules.trainer.memory.memory_step import PROMPT, ShapeDryRun
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.load import load_config
from tests.contracts.test_family_training import CASES, family_config
from tests.device import second_device
from tests.tiny import tiny_setup
from tests.trainer.builders import run_here, write_config, write_pairs

SIDE = 128
WITHIN = 0.15
MODE = "FULL_CONCURRENT"
pytestmark = pytest.mark.skipif(
    not hasattr(torch, second_device.NAME), reason="counts the test device's bytes"
)


def job(folder: Path, key: str, kind: str) -> Path:
    """Two steps of a batch of two pairs with captions as long as is predicted."""
    spec = tiny_setup(key).spec
    concepts = write_pairs(folder / "long", 4, sizes=((SIDE, SIDE),))
    for caption in (folder / "long").rglob("*.txt"):
        caption.write_text(PROMPT, encoding="utf-8")
    changes: dict[str, Any] = {
        "concepts": concepts,
        "resolution": str(SIDE),
        "samples": [],
        "batch_size": 2,
        "epochs": 1,
    }
    if kind == "half":
        changes["train_dtype"] = "BFLOAT_16"
        changes[spec.denoiser] = {"weight_dtype": "BFLOAT_16", "gradient_checkpointing": True}
    return family_config(folder, key, rlhf_dpo_execution_mode=MODE, sample_after_unit="NEVER", **changes)


def predicted(path: Path) -> MemoryPlan:
    config = load_config(path, [])
    setup = tiny_setup(config.model_type)
    # as on CUDA, without what its context and its allocator's blocks take
    return Planner(
        config, ShapeDryRun(setup, shape_only_model(setup, config), config, cuda=True), cuda=False
    ).plan(MODE)


def taken(path: Path) -> int:
    """Bytes the run has on the device at most."""
    device = torch.second  # type: ignore[attr-defined]
    gc.collect()
    before = device.live()
    device.reset_peak()
    run_here(path)
    return int(device.peak()) - int(before)


@pytest.mark.parametrize("kind", ["half", "plain"])
@pytest.mark.parametrize("key", CASES)
def test_a_run_takes_what_was_predicted(key: str, kind: str, tmp_path: Path) -> None:
    path = job(tmp_path, key, kind)
    plan = predicted(path)
    phases = {phase.name: phase.total for phase in plan.phases}
    whole = taken(path)
    shutil.rmtree(json.loads(path.read_text(encoding="utf-8"))["workspace_dir"])
    step = taken(path)
    print(f"{key} {kind}: run {plan.total / whole:.3f}, step {phases['training step'] / step:.3f}")
    assert plan.total == pytest.approx(whole, rel=WITHIN)
    assert phases["training step"] == pytest.approx(step, rel=WITHIN)
    assert step < whole or plan.largest.name == "training step", "nothing is encoded again"


@pytest.mark.parametrize("key", CASES)
def test_what_is_not_kept_takes_what_was_predicted(key: str, tmp_path: Path) -> None:
    path = job(tmp_path, key, "half")
    made = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**made, "latent_caching": False}), encoding="utf-8")
    plan, whole = predicted(path), taken(path)
    print(f"{key} nothing kept: run {plan.total / whole:.3f}, {plan.largest.name}")
    assert plan.total == pytest.approx(whole, rel=WITHIN)


def test_gradients_of_earlier_micro_batches_are_counted_once(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", 4)
    path = write_config(
        tmp_path,
        rlhf_enabled=False,
        training_method="FINE_TUNE",
        concepts=[{"path": str(tmp_path / "data" / "chosen"), "type": "STANDARD"}],
        optimizer={"optimizer": "SGD"},
        batch_size=1,
        gradient_accumulation_steps=4,
        unet={"gradient_checkpointing": True},
    )
    step = next(phase for phase in predicted(path).phases if phase.name == "training step")
    assert step.items["gradients"] > 0.3 * step.total
    # the cache is filled: nothing else is there
    run_here(path)
    shutil.rmtree(tmp_path / "run")
    there = taken(path)
    print(f"accumulated gradients: step {step.total / there:.3f}")
    assert step.total == pytest.approx(there, rel=WITHIN)
