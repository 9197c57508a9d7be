"""Files of Stable Diffusion 1.5 and XL that lack parts, hold strange tensors, or are of a relative."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.modelSetup.ModelFamily import ModelFamily
from modules.util.errors import UserError
from modules.weights.one_file import save_file as save_single_file
from tests.tiny import tiny_folder, tiny_setup
from tests.tiny.stable_diffusion import write_standard_pipeline
from tests.tiny.stable_diffusion_xl import write_standard
from tests.usual import usual
from tests.weights.test_part_sources import PREFIX, assert_same, denoiser_file

SD, XL, FLUX = "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "FLUX_DEV_1"
VAE, SECOND = "first_stage_model.", "conditioner.embedders.1.model."
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("standard")
    write_standard_pipeline(root / SD)
    write_standard(root / XL)
    return {key: root / key for key in (SD, XL)}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    """What is in the folders, only to be compared with."""
    return {key: tiny_setup(key).load(str(folder)) for key, folder in folders.items()}


@pytest.fixture(scope="module")
def contents(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> dict[str, State]:
    """What is in a file with everything."""
    place = tmp_path_factory.mktemp("whole")
    return {key: load_file(save_single_file(model, place / f"{key}.safetensors")) for key, model in models.items()}


def refused(setup: ModelFamily, path: Path, said: str) -> UserError:
    for dtypes in (PartDtypes(), PartDtypes(lazy=True)):
        with pytest.raises(UserError, match=said) as caught:
            setup.load(str(path), dtypes)
        assert caught.value.field == "base_model_name"
    return caught.value


@pytest.mark.parametrize(
    ("key", "name"),
    [
        pytest.param(XL, f"{PREFIX}input_blocks.1.0.in_layers.2.weight_scale_inv", marks=pytest.mark.slow),
        (SD, f"{VAE}encoder.norm_out.weight_scale_inv"),
        (SD, "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight_scale_inv"),
        (XL, f"{SECOND}transformer.resblocks.0.attn.in_proj_weight_scale_inv"),
    ],
)
def test_tensors_a_part_has_no_place_for_are_refused(
    key: str, name: str, contents: dict[str, State], tmp_path: Path
) -> None:
    path, state = tmp_path / "model.safetensors", contents[key]
    save_file({**state, name: torch.ones(4, 4)}, path)
    error = refused(tiny_setup(key), path, "has 1 tensor that such a part has no place for")
    assert name.rpartition(".")[2] in error.message


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (XL, "diffusion_model.input_blocks.0.0.weight"),
        (SD, "input_blocks.0.0.weight"),
        (XL, "vae.gate.weight"),
        (SD, "text_encoders.clip_l.transformer.gate.weight"),
    ],
)
def test_more_of_a_part_below_another_prefix_is_refused(
    key: str, name: str, contents: dict[str, State], tmp_path: Path
) -> None:
    path, state = tmp_path / "model.safetensors", contents[key]
    save_file({**state, name: torch.zeros(3)}, path)
    error = refused(tiny_setup(key), path, "has 1 tensor that belongs to no part")
    assert name in str(error)


@pytest.mark.parametrize("key", [SD, XL])
def test_an_lcm_model_is_named_as_such(key: str, contents: dict[str, State], tmp_path: Path) -> None:
    path, state = tmp_path / "model.safetensors", contents[key]
    save_file({**state, f"{PREFIX}time_embed.cond_proj.weight": torch.ones(4, 4)}, path)
    error = refused(tiny_setup(key), path, "is an LCM model: it was distilled")
    assert path.name in error.message and "train the model it was made from" in error.hint


@pytest.mark.parametrize(
    ("key", "lacking", "heads"),
    [
        pytest.param(SD, ("vae",), (VAE,), marks=pytest.mark.slow),
        (SD, ("text_encoder",), ("cond_stage_model.",)),
        (SD, ("unet",), (PREFIX,)),
        pytest.param(XL, ("text_encoder_2", "vae"), (VAE, SECOND), marks=pytest.mark.slow),
        (XL, ("text_encoder", "text_encoder_2", "vae"), (VAE, "conditioner.")),
    ],
)
def test_what_a_file_lacks_may_come_from_elsewhere(
    key: str,
    lacking: tuple[str, ...],
    heads: tuple[str, ...],
    folders: dict[str, Path],
    models: dict[str, Model],
    contents: dict[str, State],
    tmp_path: Path,
) -> None:
    setup, folder = tiny_setup(key), folders[key]
    path, state = tmp_path / "model.safetensors", contents[key]
    save_file({name: tensor for name, tensor in state.items() if not name.startswith(heads)}, path)
    error = refused(setup, path, " and no ".join(lacking))
    assert all(f"{part}.model_name" in str(error.hint) for part in lacking)
    shutil.copytree(folder / "tokenizer", tmp_path / "tokenizer")
    other = setup.load(str(path), part_sources={part: str(folder) for part in lacking})
    assert_same(models[key], other)


@pytest.mark.parametrize("key", usual([SD, XL], SD))
def test_a_bare_denoiser_and_a_folder_with_the_rest(
    key: str,
    folders: dict[str, Path],
    models: dict[str, Model],
    contents: dict[str, State],
    tmp_path: Path,
) -> None:
    setup, folder = tiny_setup(key), folders[key]
    path, state = tmp_path / "model.safetensors", contents[key]
    save_file({k.removeprefix(PREFIX): t for k, t in state.items() if k.startswith(PREFIX)}, path)
    rest = [name for name in setup.spec.module_parts if name != "unet"]
    assert_same(models[key], setup.load(str(path), part_sources=dict.fromkeys(rest, str(folder))))


def test_the_autoencoder_of_xl_under_its_short_name(
    folders: dict[str, Path], models: dict[str, Model], contents: dict[str, State], tmp_path: Path
) -> None:
    path, state = tmp_path / "model.safetensors", dict(contents[XL])
    shutil.copytree(folders[XL] / "tokenizer", tmp_path / "tokenizer")
    save_file({name.replace(VAE, "vae."): tensor for name, tensor in state.items()}, path)
    assert_same(models[XL], tiny_setup(XL).load(str(path)))


def test_the_projection_of_xl_in_its_other_name_and_from_elsewhere(
    folders: dict[str, Path], models: dict[str, Model], contents: dict[str, State], tmp_path: Path
) -> None:
    setup, folder = tiny_setup(XL), str(folders[XL])
    path, state = tmp_path / "model.safetensors", dict(contents[XL])
    shutil.copytree(folders[XL] / "tokenizer", tmp_path / "tokenizer")
    projection = state.pop(f"{SECOND}text_projection")
    save_file({**state, f"{SECOND}text_projection.weight": projection.T.contiguous()}, path)
    assert_same(models[XL], setup.load(str(path)))
    save_file(state, path)
    assert "text_encoder_2.model_name" in str(refused(setup, path, "has no text_projection").hint)
    assert_same(models[XL], setup.load(str(path), part_sources={"text_encoder_2": folder}))


def test_the_refiner_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "refiner.safetensors"
    state = {
        f"{PREFIX}label_emb.0.0.weight": torch.zeros(4, 2560),
        "conditioner.embedders.0.model.ln_final.weight": torch.zeros(4),
    }
    save_file(state, path)
    refused(tiny_setup(XL), path, "is the refiner of Stable Diffusion XL")
    folder = shutil.copytree(folders[XL], tmp_path / "refiner")
    config = json.loads((folder / "unet" / "config.json").read_text("utf-8"))
    config["projection_class_embeddings_input_dim"] = 2560
    (folder / "unet" / "config.json").write_text(json.dumps(config), "utf-8")
    refused(tiny_setup(XL), folder, "is the refiner of Stable Diffusion XL")


@pytest.mark.parametrize(("width", "label"), [(384, "Fill"), (128, "Canny or Depth")])
def test_flux_models_that_read_another_image_are_named(width: int, label: str, tmp_path: Path) -> None:
    setup, folder = tiny_setup(FLUX), tiny_folder(FLUX)
    path = denoiser_file(FLUX, tmp_path / "model.safetensors")
    state = load_file(path)
    save_file({**state, "img_in.weight": torch.zeros(len(state["img_in.weight"]), width)}, path)
    with pytest.raises(UserError, match=rf"is FLUX\.1 {label}, which is not supported") as caught:
        setup.load(str(folder), part_sources={"transformer": str(path)})
    assert caught.value.field == "transformer.model_name"
    copy = shutil.copytree(folder, tmp_path / "folder")
    config = json.loads((copy / "transformer" / "config.json").read_text("utf-8"))
    (copy / "transformer" / "config.json").write_text(json.dumps(config | {"in_channels": width}), "utf-8")
    refused(setup, copy, rf"is FLUX\.1 {label}")
