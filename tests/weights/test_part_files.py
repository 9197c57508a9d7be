"""Shipped configs, and the published layouts against an independent reader: diffusers' own converters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders import single_file_utils
from safetensors.torch import save_file

from modules.modelSetup.registry import MODEL_SETUPS
from modules.util.errors import UserError
from modules.weights.open_clip import to_open_clip
from modules.weights.part_files import (
    PartTensors,
    Plan,
    best_plan,
    make_plan,
    original_pieces,
    outline,
    shipped,
)
from modules.weights.single_file import file_tensors
from tests.modelSetup.originals import COMPUTED, LAYOUTS, to_original
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.usual import usual

MILLIONS = {
    ("STABLE_DIFFUSION_15", "config"): 859.52,
    ("STABLE_DIFFUSION_20", "config"): 865.91,
    ("STABLE_DIFFUSION_20_INPAINTING", "config"): 865.93,
    ("STABLE_DIFFUSION_XL_10_BASE", "config"): 2567.46,
    ("STABLE_DIFFUSION_3", "config"): 2028.33,
    ("STABLE_DIFFUSION_35", "config"): 8056.63,
    ("STABLE_DIFFUSION_35", "medium"): 2243.17,
    ("FLUX_DEV_1", "config"): 11901.41,
    ("FLUX_SCHNELL_1", "config"): 11891.18,
    ("PIXART_ALPHA", "config"): 611.35,
    ("PIXART_SIGMA", "config"): 610.86,
    ("SANA", "config"): 1604.46,
    ("SANA", "600m"): 591.75,
    ("Z_IMAGE", "config"): 6154.91,
    ("FLUX_2_DEV", "config"): 32223.28,
    ("KREA_2", "config"): 12820.07,
    ("LUMINA_2", "config"): 2609.77,
    ("ERNIE", "config"): 8033.49,
    ("LONGCAT_IMAGE", "config"): 6270.67,
    ("QWEN_21", "config"): 7115.12,
    ("ANIMA", "config"): 1956.41,
    ("HI_DREAM_FULL", "config"): 17105.73,
    ("IDEOGRAM_4", "config"): 9279.29,
}
"""Parameters of the published denoisers."""


def config_of(key: str, name: str) -> dict[str, Any]:
    part = tiny_setup(key).spec.denoiser
    place = next(place for place in shipped(key, part) if place.stem == name)
    return dict(json.loads(place.read_text(encoding="utf-8")))


# one for each class of denoiser, and sizes that are told by another file than the usual one
USUAL = [
    ("STABLE_DIFFUSION_15", "config"),
    ("STABLE_DIFFUSION_XL_10_BASE", "config"),
    ("STABLE_DIFFUSION_35", "medium"),
    ("FLUX_DEV_1", "config"),
    ("FLUX_2_DEV", "config"),
    ("PIXART_SIGMA", "config"),
    ("SANA", "600m"),
    ("LUMINA_2", "config"),
    ("QWEN_21", "config"),
    ("HI_DREAM_FULL", "config"),
]


@pytest.mark.parametrize(("key", "name"), usual(MILLIONS, *USUAL))
def test_published_sizes(key: str, name: str) -> None:
    module = outline(tiny_setup(key).spec.parts[0], config_of(key, name))
    assert round(sum(p.numel() for p in module.parameters()) / 1e6, 2) == MILLIONS[key, name]


def test_every_shipped_config_is_of_a_part() -> None:
    root = shipped("SANA", "transformer")[0].parents[2]
    assert {place.name for place in root.iterdir()} <= set(MODEL_SETUPS.keys())
    for folder in root.glob("*/*"):
        spec = MODEL_SETUPS.get(folder.parent.name).spec
        part = spec.part(folder.name)
        for place in folder.glob("*.json"):
            kind = json.loads(place.read_text(encoding="utf-8")).get("_class_name", "")
            assert part.kind in ("scheduler", "text_encoder") or kind in part.classes


@pytest.mark.parametrize(
    ("key", "converter"),
    [
        ("STABLE_DIFFUSION_3", "convert_sd3_transformer_checkpoint_to_diffusers"),
        ("STABLE_DIFFUSION_35", "convert_sd3_transformer_checkpoint_to_diffusers"),
        ("SANA", "convert_sana_transformer_to_diffusers"),
        ("Z_IMAGE", "convert_z_image_transformer_checkpoint_to_diffusers"),
        ("FLUX_2", "convert_flux2_transformer_checkpoint_to_diffusers"),
        ("KREA_2", "convert_krea2_transformer_checkpoint_to_diffusers"),
        ("ANIMA", "convert_cosmos_transformer_checkpoint_to_diffusers"),
        ("QWEN_21", "convert_qwen_image21_transformer_checkpoint_to_diffusers"),
    ],
)
def test_diffusers_reads_the_same(key: str, converter: str) -> None:
    own = tiny_model(key).denoiser.state_dict()
    state = to_original(own, LAYOUTS[key])
    state |= {name: torch.zeros(shape) for name, shape in COMPUTED.get(key, {}).items()}
    made = getattr(single_file_utils, converter)(state)
    assert made.keys() == own.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in own.items())


@pytest.mark.parametrize(
    ("key", "converter"),
    [
        ("FLUX_DEV_1", "convert_flux_transformer_checkpoint_to_diffusers"),
        ("CHROMA_1", "convert_chroma_transformer_checkpoint_to_diffusers"),
        ("LUMINA_2", "convert_lumina2_to_diffusers"),
    ],
)
def test_diffusers_cuts_the_same_rows(key: str, converter: str) -> None:
    """Its converters of these know one width only; tensors of that width here hold the number of their row."""
    spec = tiny_setup(key).spec
    part, config = (
        spec.part("transformer"),
        config_of(key, "config") | {"num_layers": 1, "num_single_layers": 1},
    )
    module = outline(part, config)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, piece in original_pieces(spec, part, module).items():
        if name in module.state_dict():
            shape = tuple(module.state_dict()[name].shape)
            shapes[piece.names[0]] = (piece.total or shape[0], *shape[1:])
    rows = {
        name: (torch.arange(shape[0]) % 251)
        .to(torch.uint8)
        .reshape(-1, *(1 for _ in shape[1:]))
        .expand(shape)
        for name, shape in shapes.items()
    }
    plan = Plan(part, config, module)
    make_plan(PartTensors(shapes, rows.__getitem__), plan, original_pieces(spec, part, module))
    assert not plan.strays
    theirs = getattr(single_file_utils, converter)(dict(rows))
    assert theirs.keys() == plan.tensors.keys()
    for name, tensor in theirs.items():
        source, piece = plan.tensors[name]
        assert torch.equal(piece.of(rows[source], tensor.shape), tensor), name


@pytest.mark.parametrize(
    ("key", "name"),
    usual(
        [("STABLE_DIFFUSION_35", "medium"), ("SANA", "600m"), ("SANA", "1.5-1600m"), ("PIXART_SIGMA", "512")],
        ("STABLE_DIFFUSION_35", "medium"),
        ("PIXART_SIGMA", "512"),
    ),
)
def test_sizes_are_told_apart(key: str, name: str) -> None:
    spec = tiny_setup(key).spec
    part, config = spec.parts[0], config_of(key, name)
    module = outline(part, config)
    state = dict(module.state_dict()) | dict(module.named_buffers())
    shapes: dict[str, tuple[int, ...]] = {}
    for own, piece in original_pieces(spec, part, module).items():
        shape = tuple(state[own].shape)
        shapes[piece.names[0]] = (piece.total, *shape[1:]) if piece.rows else shape
    choices = [config_of(key, place.stem) for place in shipped(key, part.name)]
    plan = best_plan(PartTensors(shapes, lambda name: torch.zeros(shapes[name])), spec, part, choices)
    assert plan is not None and not plan.strays
    assert plan.config == config


def test_configs_of_another_class_are_refused() -> None:
    with pytest.raises(UserError, match="does not fit its class"):
        outline(tiny_setup("SANA").spec.parts[0], {"num_layers": "many"})


@pytest.mark.parametrize("key", usual(["STABLE_DIFFUSION_21", "STABLE_DIFFUSION_20_INPAINTING"], "STABLE_DIFFUSION_21"))
def test_second_generation(key: str, tmp_path: Path) -> None:
    """Its text encoder is OpenCLIP's, whose last layer the model does not use."""
    setup, folder = tiny_setup(key), tiny_folder(key)
    model = setup.load(str(folder))
    state: dict[str, torch.Tensor] = {}
    for name in ("unet", "vae"):
        state |= file_tensors(setup.spec.part(name), model.module(name), model.module(name).state_dict())
    text = model.module("text_encoder").state_dict()
    clip = to_open_clip({k.removeprefix("text_model."): t for k, t in text.items()})
    clip |= {k.replace("resblocks.1", "resblocks.2"): t + 1 for k, t in clip.items() if "resblocks.1" in k}
    clip |= {"text_projection": torch.ones(24, 24), "logit_scale": torch.ones(())}
    state |= {f"cond_stage_model.model.{name}": tensor for name, tensor in clip.items()}
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    for name in ("unet", "vae", "text_encoder"):
        shutil.copytree(folder / name, tmp_path / "model.safetensors.config" / name)
    shutil.copytree(folder / "tokenizer", tmp_path / "tokenizer")
    again = setup.load(str(path))
    assert again.schedule.prediction == ("v_prediction" if key.endswith("21") else "epsilon")
    for name, module in model.modules().items():
        other = again.module(name).state_dict()
        assert all(torch.equal(tensor, other[k]) for k, tensor in module.state_dict().items()), name
    first, second = (images(setup, each, ["a cat"], seeds=[1], steps=2, size=SIZE) for each in (model, again))
    assert torch.allclose(first, second, atol=1e-5)


def test_the_unet_of_another_first_generation_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unet in .* is not one of Stable Diffusion 2\.1") as caught:
        model = tiny_model()
        state = file_tensors(model.spec.part("unet"), model.denoiser, model.denoiser.state_dict())
        save_file({name: t.contiguous().clone() for name, t in state.items()}, tmp_path / "m.safetensors")
        config = tmp_path / "m.safetensors.config" / "unet"
        config.mkdir(parents=True)
        shipped_config = config_of("STABLE_DIFFUSION_21", "config")
        (config / "config.json").write_text(json.dumps(shipped_config))
        tiny_setup("STABLE_DIFFUSION_21").load(
            str(tiny_folder("STABLE_DIFFUSION_21")), part_sources={"unet": str(tmp_path / "m.safetensors")}
        )
    assert "Stable Diffusion 1.5" in str(caught.value)
