"""Single files as publishers and other programs make them: with copies, marks, scales and all parts in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.model.dtypes import PartDtypes
from modules.modelSetup.ModelFamily import LoadOptions
from modules.util.errors import UserError
from modules.weights.one_file import save_file as save_single_file
from modules.weights.single_file import file_tensors, to_ldm
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.stable_diffusion import write_standard_pipeline
from tests.tiny.stable_diffusion_xl import write_standard
from tests.usual import usual
from tests.weights.test_part_sources import (
    PREFIX,
    assert_same,
    configs_beside,
    denoiser_file,
    part_state,
)

SD, XL, FLUX = "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "FLUX_DEV_1"
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("standard")
    write_standard_pipeline(root / SD)
    write_standard(root / XL)
    return {key: root / key for key in (SD, XL)}


def whole(key: str, folders: dict[str, Path], place: Path) -> tuple[Path, State]:
    """A file with everything, and what is in it; its tokenizer next to it."""
    shutil.copytree(folders[key] / "tokenizer", place / "tokenizer", dirs_exist_ok=True)
    path = save_single_file(tiny_setup(key).load(str(folders[key])), place / "model.safetensors")
    return path, load_file(path)


@pytest.mark.parametrize("key", usual([SD, XL], SD))
def test_copies_and_leftovers_of_training_are_ignored(
    key: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    path, state = whole(key, folders, tmp_path)
    head = "cond_stage_model." if key == SD else "conditioner.embedders.0."
    inner = len(PREFIX)
    ema = {
        f"model_ema.diffusion_model{name[inner:].replace('.', '')}": tensor + 1
        for name, tensor in state.items()
        if name.startswith(PREFIX)
    }
    more = {
        "model_ema.decay": torch.tensor(0.9999),
        "model_ema.num_updates": torch.tensor(3),
        "alphas_cumprod": torch.zeros(1000),
        "betas": torch.zeros(1000, dtype=torch.float64),
        "denoiser.sigmas": torch.zeros(1000),
        "conditioner.embedders.1.model.logit_scale": torch.zeros(()),
        f"{head}transformer.text_model.embeddings.position_ids": torch.arange(16)[None],
    }
    save_file({**state, **ema, **more}, path)
    assert_same(tiny_setup(key).load(str(folders[key])), tiny_setup(key).load(str(path)))


def test_text_encoders_in_old_names(folders: dict[str, Path], tmp_path: Path) -> None:
    path, state = whole(SD, folders, tmp_path)
    save_file({name.replace("transformer.text_model.", "transformer."): t for name, t in state.items()}, path)
    assert_same(tiny_setup().load(str(folders[SD])), tiny_setup().load(str(path)))


def test_marks_of_a_denoiser_from_a_file_of_its_own(folders: dict[str, Path], tmp_path: Path) -> None:
    setup, folder = tiny_setup(XL), str(folders[XL])
    path, state = whole(XL, folders, tmp_path)
    sources = {"unet": str(path)}
    assert setup.load(folder, part_sources=sources).schedule.prediction == "epsilon"
    marks = {"v_pred": torch.zeros(0), "ztsnr": torch.zeros(0)}
    bare = {name.removeprefix(PREFIX): t for name, t in state.items() if name.startswith(PREFIX)}
    for held in (state, bare):
        save_file({**held, **marks}, path)
        model = setup.load(folder, part_sources=sources)
        assert model.schedule.prediction == "v_prediction"
        assert float(model.schedule.alphas_cumprod_T[-1]) == 0.0
        assert model.parts["scheduler"]["timestep_spacing"] == "trailing"
    # what the config demands counts more
    save_file({**bare, "v_pred": torch.zeros(0)}, path)
    options = LoadOptions(prediction="epsilon")
    assert setup.load(folder, part_sources=sources, options=options).schedule.prediction == "epsilon"


@pytest.mark.parametrize("alone", usual([False, True], False))
def test_other_kinds_of_noise_are_refused(alone: bool, folders: dict[str, Path], tmp_path: Path) -> None:
    path, state = whole(XL, folders, tmp_path)
    save_file({**state, "edm_vpred.sigma_max": torch.tensor(120.0)}, path)
    with pytest.raises(UserError, match="continuous noise levels") as caught:
        if alone:
            tiny_setup(XL).load(str(folders[XL]), part_sources={"unet": str(path)})
        else:
            tiny_setup(XL).load(str(path))
    assert caught.value.field == ("unet.model_name" if alone else "base_model_name")


def eight_bits(state: State, leaf: str, rows: bool = False) -> tuple[State, State]:
    """Matrices in 8 bits with their scales, and what they stand for."""
    packed: State = {}
    meant: State = {}
    for name, tensor in state.items():
        if name.endswith(".weight") and tensor.dim() == 2 and "norm" not in name:
            largest = tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()
            scale = largest.float() / 448.0
            packed[name] = (tensor / scale).to(torch.float8_e4m3fn)
            packed[name.removesuffix("weight") + leaf] = scale.flatten() if rows else scale
            meant[name] = packed[name].float() * scale
        else:
            packed[name] = meant[name] = tensor
    return packed, meant


@pytest.mark.parametrize(
    ("leaf", "rows"),
    usual(
        [("scale_weight", False), ("weight_scale", False), ("weight_scale", True)],
        ("scale_weight", False),
        ("weight_scale", True),
    ),
)
def test_weights_in_8_bits_with_a_scale(leaf: str, rows: bool, tmp_path: Path) -> None:
    setup, folder = tiny_setup(FLUX), str(tiny_folder(FLUX))
    path = denoiser_file(FLUX, tmp_path / "a.safetensors", PREFIX)
    packed, meant = eight_bits(load_file(path), leaf, rows)
    layer = next(name for name in packed if name.endswith(leaf)).removesuffix(leaf)
    marks = {
        "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn),
        f"{PREFIX}scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn),
        f"{layer}input_scale": torch.tensor(1.0),
        f"{layer}comfy_quant": torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8),
    }
    save_file({**packed, **marks}, path)
    save_file(meant, tmp_path / "b.safetensors")
    first, second = (
        setup.load(folder, part_sources={"transformer": str(tmp_path / name)})
        for name in ("a.safetensors", "b.safetensors")
    )
    assert_same(first, second)
    ours, theirs = (images(setup, each, ["a cat"], seeds=[1], steps=2, size=SIZE) for each in (first, second))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_scales_that_do_not_fit_and_four_bits(tmp_path: Path) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors")
    packed, _ = eight_bits(load_file(path), "weight_scale")
    name = next(name for name in packed if name.endswith("weight_scale"))
    for extra, said in (
        ({name: torch.ones(3)}, "has 3 numbers for"),
        ({f"{name}_2": torch.ones(())}, "weights in 4 bits"),
    ):
        save_file({**packed, **extra}, path)
        with pytest.raises(UserError, match=said):
            tiny_setup(FLUX).load(str(tiny_folder(FLUX)), part_sources={"transformer": str(path)})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 8}, "int8_tensorwise, rotated"),
        ({"format": "asym_w4a8_int8"}, "asym_w4a8_int8"),
    ],
)
@pytest.mark.parametrize("whole_file", [False, True])
def test_weights_that_a_scale_does_not_restore_are_refused(
    facts: dict[str, object], said: str, whole_file: bool, tmp_path: Path
) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors")
    packed, _ = eight_bits(load_file(path), "weight_scale", rows=True)
    layer = next(name for name in packed if name.endswith("weight_scale")).removesuffix(".weight_scale")
    if whole_file:
        save_file(packed, path, {"_quantization_metadata": json.dumps({"layers": {layer: facts}})})
    else:
        mark = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        save_file({**packed, f"{layer}.comfy_quant": mark}, path)
    with pytest.raises(UserError, match=f"{layer} is stored in the format {said}"):
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), part_sources={"transformer": str(path)})


def test_scales_of_as_many_blocks_as_rows_are_refused(tmp_path: Path) -> None:
    path = denoiser_file(FLUX, tmp_path / "a.safetensors")
    packed, _ = eight_bits(load_file(path), "weight_scale")
    name = next(name for name in packed if name.endswith("weight_scale"))
    rows = packed[name.removesuffix("_scale")].shape[0]
    save_file({**packed, name: torch.ones(2, rows // 2)}, path)
    with pytest.raises(UserError, match="kept in blocks"):
        tiny_setup(FLUX).load(str(tiny_folder(FLUX)), part_sources={"transformer": str(path)})


def test_plain_8_bits_in_a_model_of_the_first_generation(folders: dict[str, Path], tmp_path: Path) -> None:
    path, state = whole(SD, folders, tmp_path)
    mixed = {
        name: tensor.to(torch.float8_e4m3fn if tensor.dim() > 1 else torch.bfloat16)
        if name.startswith(PREFIX)
        else tensor.half()
        for name, tensor in state.items()
    }
    save_file(mixed, path)
    model = tiny_setup().load(str(path), PartDtypes(default=torch.bfloat16))
    made = file_tensors(model.spec.part("unet"), model.denoiser, model.denoiser.state_dict())
    for name, tensor in made.items():
        assert torch.equal(tensor, mixed[name].to(torch.bfloat16)), name


@pytest.mark.parametrize(
    ("key", "vae"),
    [
        (FLUX, "vae."),
        ("STABLE_DIFFUSION_3", "first_stage_model."),
        pytest.param("Z_IMAGE", "vae.", marks=pytest.mark.slow),
    ],
)
def test_all_parts_in_one_file(key: str, vae: str, tmp_path: Path) -> None:
    """As ComfyUI saves checkpoints."""
    setup, folder = tiny_setup(key), tiny_folder(key)
    path = denoiser_file(key, tmp_path / "model.safetensors", PREFIX)
    model = tiny_model(key)
    state = load_file(path)
    for part in setup.spec.of_kind("text_encoder"):
        head = f"text_encoders.{part.comfy_name}."
        inner = f"{head}transformer.{part.comfy_root}{'.' if part.comfy_root else ''}"
        state |= {f"{inner}{name}": tensor for name, tensor in part_state(key, part.name).items()}
        state[f"{head}logit_scale"] = torch.tensor(4.6)
    autoencoder = file_tensors(setup.spec.part("vae"), model.vae, model.vae.state_dict())
    state |= {f"{vae}{name}": tensor.contiguous() for name, tensor in autoencoder.items()}
    save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    configs_beside(key, path, (*setup.spec.module_parts, "scheduler"))
    for part in setup.spec.of_kind("tokenizer"):
        shutil.copytree(folder / part.name, tmp_path / part.name)
    assert_same(model, setup.load(str(path)))


def test_the_autoencoder_of_flux_2(tmp_path: Path) -> None:
    """Statistics of its latents are in the file, and the convolutions around them in its two halves."""
    setup, folder = tiny_setup("FLUX_2"), str(tiny_folder("FLUX_2"))
    model = setup.load(folder)
    state: State = {}
    for name, tensor in model.vae.state_dict().items():
        made, value = (name, tensor) if name.startswith("bn.") else to_ldm("vae", model.vae, name, tensor)
        half = {"quant_conv": "encoder.", "post_quant_conv": "decoder."}.get(made.partition(".")[0], "")
        state[f"{half}{made}"] = value.contiguous()
    assert {"bn.running_mean", "encoder.quant_conv.weight", "decoder.post_quant_conv.bias"} <= state.keys()
    save_file(state, tmp_path / "vae.safetensors")
    assert_same(model, setup.load(folder, part_sources={"vae": str(tmp_path / "vae.safetensors")}))
