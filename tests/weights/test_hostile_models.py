"""Configs and weights that no model was published with are errors of the model, found before anything large is made."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.util.errors import UserError
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_here, write_config


def changed(folder: Path, place: str, **fields: Any) -> Path:
    """A copy of the tiny model with other values in one of its configs."""
    made = Path(shutil.copytree(tiny_folder(), folder))
    config = json.loads((made / place).read_text("utf-8"))
    (made / place).write_text(json.dumps(config | fields), "utf-8")
    return made


@pytest.mark.parametrize(
    "fields",
    [
        {"num_train_timesteps": -5},
        {"num_train_timesteps": 0},
        {"num_train_timesteps": 10**9},
        {"num_train_timesteps": "1000"},
        {"num_train_timesteps": True},
        {"beta_start": "x"},
        {"beta_end": 2.0},
        {"trained_betas": "abc"},
        {"trained_betas": [0.1, None]},
        {"trained_betas": []},
        {"steps_offset": -1},
    ],
    ids=str,
)
def test_a_noise_schedule_that_cannot_be_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = changed(tmp_path / "model", "scheduler/scheduler_config.json", **fields)
    with pytest.raises(UserError, match=next(iter(fields))) as caught:
        tiny_setup().load(str(folder), parts=[])
    assert caught.value.field == "base_model_name"


@pytest.mark.parametrize(
    "dtypes", [PartDtypes(), PartDtypes(lazy=True), PartDtypes(lazy=True, configs_only=True)]
)
@pytest.mark.parametrize(
    ("place", "field"), [("text_encoder", "num_hidden_layers"), ("unet", "layers_per_block")]
)
def test_more_layers_than_tensors_are_refused_at_once(
    tmp_path: Path, place: str, field: str, dtypes: PartDtypes
) -> None:
    folder = changed(tmp_path / "model", f"{place}/config.json", **{field: 1_000_000})
    if dtypes.configs_only:
        (file,) = (folder / place).glob("*.safetensors")
        file.unlink()
    start = time.monotonic()
    with pytest.raises(UserError, match=f"{field} = 1000000, more layers than"):
        tiny_setup().load(str(folder), dtypes)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["unet", "text_encoder", "vae"])
def test_a_model_with_undefined_weights_is_named_before_the_first_step(
    tmp_path: Path, part: str, value: float
) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    (file,) = (folder / part).glob("*.safetensors")
    state = load_file(file)
    name = sorted(state)[3]
    state[name].view(-1)[0] = value
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"1 of the .* in the {part} of model are NaN or infinite") as caught:
        run_here(write_config(tmp_path, base_model_name=str(folder)))
    assert name.removeprefix("text_model.") in caught.value.message
    assert caught.value.field == "base_model_name"
    assert not (tmp_path / "out.safetensors").exists()


def test_large_weights_are_sound(tmp_path: Path) -> None:
    """Their sum would leave the range of their type."""
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    (file,) = (folder / "vae").glob("*.safetensors")
    state = {name: tensor.half() for name, tensor in load_file(file).items()}
    state["decoder.conv_out.bias"] = torch.full_like(state["decoder.conv_out.bias"], 60000.0)
    save_file(state, file, metadata={"format": "pt"})
    changes = {"base_model_name": str(folder), "vae": {"weight_dtype": "FLOAT_16"}, "max_steps": 1}
    assert run_here(write_config(tmp_path, **changes)).progress.global_step == 1
