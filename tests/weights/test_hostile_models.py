"""Configs and weights that no model was published with are errors of the model, found before anything large is made."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.modelSetup.training import check_weights
from modules.util.errors import DataError, UserError
from scripts import train
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_here, write_config
from tests.usual import usual


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
        {"beta_start": None},
        {"beta_end": None},
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


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        ("unet", "down_block_types", ["CrossAttnDownBlock2D", 7]),
        ("text_encoder", "projection_dim", "x"),
        ("text_encoder", "intermediate_size", []),
        ("text_encoder", "num_attention_heads", 0),
        ("vae", "scaling_factor", {}),
        ("vae", "down_block_types", []),
    ],
)
def test_a_config_that_no_part_can_be_made_of_is_named(
    tmp_path: Path, place: str, field: str, value: object, lazy: bool
) -> None:
    folder = changed(tmp_path / "model", f"{place}/config.json", **{field: value})
    with pytest.raises(UserError, match=place):
        tiny_setup().load(str(folder), PartDtypes(lazy=lazy))


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("part", "value"),
    usual(
        itertools.product(["unet", "text_encoder", "vae"], [NAN, INFINITE]),
        ("unet", NAN), ("text_encoder", INFINITE),
    ),
)  # fmt: skip
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


@pytest.mark.parametrize("name", usual(["bn.running_mean", "bn.running_var"], "bn.running_var"))
def test_undefined_statistics_of_latents_are_named(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(tiny_folder("FLUX_2"), tmp_path / "model"))
    (file,) = (folder / "vae").glob("*.safetensors")
    state = load_file(file)
    state[name][1] = float("nan")
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=f"1 of the .* numbers of {name} in the vae of model are NaN"):
        check_weights(tiny_setup("FLUX_2").load(str(folder)))


@pytest.mark.parametrize(
    ("kind", "value"),
    usual(
        itertools.product(["FLOAT_8", "INT_8", "NFLOAT_4"], [NAN, INFINITE]),
        ("FLOAT_8", NAN), ("INT_8", INFINITE),
    ),
)  # fmt: skip
def test_undefined_weights_are_named_before_they_are_rounded(tmp_path: Path, kind: str, value: float) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    state = load_file(file)
    name = next(n for n in sorted(state) if n.endswith("attn1.to_q.weight"))
    state[name].view(-1)[0] = value
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"1 of the .* numbers of {name} in the unet of model"):
        run_here(write_config(tmp_path, base_model_name=str(folder), unet={"weight_dtype": kind}))
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("part", ["unet", "text_encoder", "vae"])
def test_whole_numbers_for_weights_are_named_by_the_dry_run(
    tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    (file,) = (folder / part).glob("*.safetensors")
    state = load_file(file)
    name = next(n for n in sorted(state) if n.endswith(".weight"))
    state[name] = torch.ones(state[name].shape, dtype=torch.int32)
    save_file(state, file, metadata={"format": "pt"})
    assert (
        train.main(["--config-path", str(write_config(tmp_path, base_model_name=str(folder))), "--dry-run"])
        == 2
    )
    said = capsys.readouterr().err
    assert name.removeprefix("text_model.") in said and "int32" in said and "base_model_name" in said
    with pytest.raises(UserError, match="int32"):
        tiny_setup().load(str(folder))


def dry_run(tmp_path: Path, folder: Path, model_type: str, **changes: Any) -> int:
    config = write_config(tmp_path / "job", model_type=model_type, base_model_name=str(folder), **changes)
    return train.main(["--config-path", str(config), "--dry-run"])


@pytest.mark.parametrize(
    ("model_type", "width", "said"),
    [
        ("STABLE_DIFFUSION_21", 768, "is Stable Diffusion 1.5"),
        ("STABLE_DIFFUSION_20_BASE", 768, "is Stable Diffusion 1.5"),
        ("STABLE_DIFFUSION_15", 1024, "is Stable Diffusion 2.x"),
        ("STABLE_DIFFUSION_20_INPAINTING", 768, "is Stable Diffusion 1.5"),
    ],
)
def test_a_model_of_the_other_generation_is_named_by_the_dry_run(
    tmp_path: Path, model_type: str, width: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(tmp_path / "model", "unet/config.json", cross_attention_dim=width)
    assert dry_run(tmp_path, folder, model_type) == 2
    shown = capsys.readouterr().err
    assert said in shown and "set model_type to STABLE_DIFFUSION_" in shown


def test_a_model_with_the_other_prediction_is_named_by_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "scheduler/scheduler_config.json"
    noise = changed(tmp_path / "noise", place, prediction_type="epsilon")
    assert dry_run(tmp_path, noise, "STABLE_DIFFUSION_21") == 2
    assert "set it to STABLE_DIFFUSION_21_BASE" in capsys.readouterr().err
    # what the memory of a sound model would be takes a second each
    monkeypatch.setattr(train, "memory", lambda config: [])
    assert dry_run(tmp_path, noise, "STABLE_DIFFUSION_21_BASE") == 0
    assert dry_run(tmp_path, noise, "STABLE_DIFFUSION_21", force_epsilon_prediction=True) == 0
    velocity = changed(tmp_path / "velocity", place, prediction_type="v_prediction")
    assert dry_run(tmp_path, velocity, "STABLE_DIFFUSION_21") == 0
    assert dry_run(tmp_path, velocity, "STABLE_DIFFUSION_15") == 0


def test_large_weights_are_sound(tmp_path: Path) -> None:
    """Their sum would leave the range of their type."""
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "model"))
    (file,) = (folder / "vae").glob("*.safetensors")
    state = {name: tensor.half() for name, tensor in load_file(file).items()}
    state["decoder.conv_out.bias"] = torch.full_like(state["decoder.conv_out.bias"], 60000.0)
    save_file(state, file, metadata={"format": "pt"})
    changes = {"base_model_name": str(folder), "vae": {"weight_dtype": "FLOAT_16"}, "max_steps": 1}
    assert run_here(write_config(tmp_path, **changes)).progress.global_step == 1
