"""Runs on a transformer from a GGUF file: the adapter alone is trained, and the memory is known beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.modelSetup import training
from modules.trainer.memory.memory_plan import plan_memory
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError
from tests.tiny import small_folder, tiny_setup
from tests.trainer.builders import run_here, settings, write_config
from tests.weights.test_gguf import FLUX, written


def options(path: Path, **part: Any) -> dict[str, Any]:
    plain = {"gradient_checkpointing": False, "model_name": str(path)}
    return {"model_type": FLUX, "base_model_name": str(small_folder(FLUX)), "transformer": {**plain, **part}}


def test_a_run_trains_the_adapter_alone(tmp_path: Path) -> None:
    path, plain = written(FLUX, tmp_path)
    before = path.read_bytes()
    made = []
    for place in (path, plain):
        folder = tmp_path / place.stem
        run_here(write_config(folder, max_steps=2, **options(place)))
        made.append(load_file(folder / "out.safetensors"))
    assert path.read_bytes() == before
    assert made[0].keys() == made[1].keys()
    ups = [name for name in made[0] if name.endswith("lora_up.weight")]
    assert ups and any(made[0][name].abs().max() > 0 for name in ups)
    for name, tensor in made[0].items():
        assert torch.allclose(tensor, made[1][name], rtol=1e-2, atol=1e-3), name


@pytest.mark.slow
def test_the_forecast_knows_the_size_of_the_blocks(tmp_path: Path) -> None:
    sizes = []
    for path in written(FLUX, tmp_path, kinds=("Q4_0",)):
        config = TrainConfig.from_dict(settings(tmp_path, concepts=[], **options(path)))
        plan = plan_memory(config, "SEQUENTIAL", cuda=False)
        (step,) = (phase for phase in plan.phases if phase.name == "training step")
        sizes.append(step.items["weights: transformer"])
        module = training.load_model(tiny_setup(FLUX), config, ["transformer", "vae"]).denoiser
        tensors = [*module.parameters(), *module.buffers()]
        assert sizes[-1] == sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize(
    ("changes", "part", "field"),
    [
        ({"training_method": "FINE_TUNE"}, {}, "transformer.model_name"),
        ({}, {"weight_dtype": "NFLOAT_4"}, "transformer.weight_dtype"),
        ({"lora_decompose": True}, {}, "lora_decompose"),
        ({"peft_type": "LOKR"}, {}, "peft_type"),
        ({"training_adapter": {"model_name": "a.safetensors"}}, {}, "training_adapter.model_name"),
    ],
)
def test_what_needs_other_weights_is_refused_by_the_check(
    changes: dict[str, Any], part: dict[str, Any], field: str, tmp_path: Path
) -> None:
    made = settings(tmp_path, concepts=[], **{**options(Path("model.GGUF"), **part), **changes})
    found = [error for error in find_problems(TrainConfig.from_dict(made)).errors if error.field == field]
    assert found and all(isinstance(error, UnsupportedError) and "GGUF" in error.message for error in found)
