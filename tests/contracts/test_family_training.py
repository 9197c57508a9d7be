"""Whole runs of every family: preference pairs of mixed shapes, resuming from a backup, and full fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.modelSetup.sample_images import check_sample
from modules.trainer.callbacks import Callback
from modules.util.config.SampleConfig import SampleConfig
from modules.util.enum.choices import NoiseScheduler
from modules.util.errors import UnsupportedError
from tests.contracts.test_family import SIBLINGS, VARIANTS, families
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_and_go_back, run_here, same_weights, write_config, write_pairs
from tests.usual import usual

pytestmark = pytest.mark.usefixtures("from_memory")
CASES = sorted({key for key, _ in families()})
USUAL = tuple(key for key in CASES if key not in (*VARIANTS, *SIBLINGS))


def family_config(folder: Path, key: str, **changes: Any) -> Path:
    """A run of a few steps on the family's tiny model, with images of two shapes."""
    spec = tiny_setup(key).spec
    side = max(32, spec.size_multiple)
    given: dict[str, Any] = {
        "model_type": key,
        "base_model_name": str(tiny_folder(key)),
        "resolution": str(side),
        "epochs": 2,
        "samples": [{"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 2}],
        **changes,
    }
    sizes, edited = ((side, side), (2 * side, side)), spec.sources > 0
    given.setdefault("concepts", write_pairs(folder / "data", 4, sizes, edited))
    given.setdefault(spec.denoiser, {"gradient_checkpointing": False})
    # the helper's config is of another family
    path = write_config(folder, **given)
    data = json.loads(path.read_text(encoding="utf-8"))
    if spec.denoiser != "unet":
        data.pop("unet", None)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


class StepsTaken(Callback):
    """Notes the steps of a run."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        self.taken.append(progress.global_step)


TUNED = ("STABLE_DIFFUSION_15", "FLUX_DEV_1", "SANA", "QWEN_EDIT")
"""Families of several kinds of denoisers, encoders and sources. What is trained, what is kept for a resume and what is
saved are decided without a family; that a saved folder of each is read again is seen in ``test_family.py``.
"""
RESUMED = ("FLUX_DEV_1", "SANA", "QWEN_EDIT")
"""``tests/trainer/resume`` resumes many runs of a UNet."""
# every family has such layers; how all others are saved is seen in ``tests/adapter``
FEW = {"layer_filter_preset": "custom", "layer_filter": "to_q"}


@pytest.mark.parametrize("key", usual(CASES, *RESUMED))
def test_a_resumed_run_ends_with_the_same_weights(key: str, tmp_path: Path) -> None:
    config = family_config(tmp_path, key, **FEW)
    trainer = run_and_go_back(config, 3)
    assert trainer.progress.global_step == 4, "two buckets of two pairs, twice"
    steps = StepsTaken()
    run_here(config, "continue_last_backup=true", callback=steps)
    assert steps.taken == [4], "the backup is of the middle of an epoch"
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")


# in the usual run, the families that it does not resume, without relatives that only have other encoders
RELATIVES = ("FLUX_2_DEV", "FLUX_SCHNELL_1", "PIXART_SIGMA", "STABLE_DIFFUSION_20", "STABLE_DIFFUSION_35")


@pytest.mark.parametrize("key", usual(USUAL, *(key for key in USUAL if key not in (*RESUMED, *RELATIVES))))
def test_a_run_trains_pairs_of_two_shapes(key: str, tmp_path: Path) -> None:
    steps = StepsTaken()
    run_here(family_config(tmp_path, key, **FEW, epochs=1), callback=steps)
    assert steps.taken == [1, 2], "two buckets of two pairs"
    saved = load_file(tmp_path / "out.safetensors")
    ups = [tensor for name, tensor in saved.items() if ".lora_up." in name or ".lora_B." in name]
    assert ups and all(tensor.any() for tensor in ups), "an adapter begins with zeros"


@pytest.mark.parametrize("key", usual(CASES, *TUNED))
def test_full_fine_tuning_changes_the_denoiser_alone(key: str, tmp_path: Path) -> None:
    side = max(32, tiny_setup(key).spec.size_multiple)
    chosen, _ = write_pairs(tmp_path / "data", 2, ((side, side),), tiny_setup(key).spec.sources > 0)
    concepts = [{**chosen, "name": "all", "type": "STANDARD"}]
    config = family_config(
        tmp_path,
        key,
        concepts=concepts,
        training_method="FINE_TUNE",
        rlhf_enabled=False,
        epochs=1,
        learning_rate=1e-3,
        output_model_format="DIFFUSERS",
        output_model_destination=str(tmp_path / "tuned"),
    )
    run_here(config)
    setup = tiny_setup(key)
    base, tuned = setup.load(str(tiny_folder(key))), setup.load(str(tmp_path / "tuned"))
    for name, module in base.modules().items():
        now = tuned.module(name).state_dict()
        changed = [path for path, tensor in module.state_dict().items() if not torch.equal(tensor, now[path])]
        assert bool(changed) == (name == setup.spec.denoiser), (name, changed[:3])


@pytest.mark.parametrize("key", CASES)
def test_a_sample_that_leaves_all_open_is_made_the_family_s_way(key: str) -> None:
    setup = tiny_setup(key)
    model, spec = setup.load(str(tiny_folder(key))), setup.spec
    filled = SampleConfig(prompt="a cat").filled(setup.spec)
    assert filled.size == (spec.default_resolution,) * 2
    assert (filled.diffusion_steps, filled.cfg_scale) == (spec.default_steps, spec.default_cfg)
    check_sample(setup, model, filled)
    wrong = SampleConfig(prompt="a cat", noise_scheduler=NoiseScheduler.DDIM)
    if spec.prediction == "flow":
        with pytest.raises(UnsupportedError, match="flow-matching"):
            check_sample(setup, model, wrong.filled(setup.spec))
    else:
        check_sample(setup, model, wrong.filled(setup.spec))
