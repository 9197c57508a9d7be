"""Files of models at their real size, without weights: published names, shapes and types, and a hole for the values.

The names come from ``originals``, which is written apart from the program's tables; those of the UNets are read back by
diffusers' own converters. A sparse file of 24 GB takes a few hundred kilobytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.model.dtypes import PartDtypes
from modules.model.lazy_modules import lazy_base_tensors
from modules.model.Model import Model
from modules.util.errors import UserError
from modules.weights.part_files import outline, shipped
from modules.weights.single_file import file_tensors
from tests.modelSetup.originals import LAYOUTS, to_original
from tests.tiny import tiny_folder, tiny_setup

Stored = dict[str, tuple[str, tuple[int, ...]]]
"""Name -> type and shape."""
PREFIX = "model.diffusion_model."
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8}
COUNTS = {
    ("FLUX_DEV_1", "config"): (780, 1160),
    ("FLUX_SCHNELL_1", "config"): (776, 1156),
    ("FLUX_KONTEXT_DEV_1", "config"): (780, 1160),
    ("CHROMA_1", "config"): (643, 1023),
    ("FLUX_2", "config"): (149, 169),
    ("FLUX_2", "9b"): (201, 233),
    ("FLUX_2_DEV", "config"): (299, 331),
    ("QWEN", "config"): (1933, 1933),
    ("QWEN_EDIT", "config"): (1933, 1933),
    ("QWEN_EDIT_PLUS", "config"): (1933, 1933),
    ("Z_IMAGE", "config"): (453, 521),
    ("KREA_2", "config"): (430, 430),
    ("LUMINA_2", "config"): (399, 459),
    ("ERNIE", "config"): (409, 409),
    ("LONGCAT_IMAGE", "config"): (412, 612),
    ("LONGCAT_IMAGE_EDIT", "config"): (412, 612),
    ("QWEN_21", "config"): (265, 297),
    ("ANIMA", "config"): (567, 567),
    ("HI_DREAM_FULL", "config"): (1615, 1615),
    ("IDEOGRAM_4", "config"): (458, 526),
    ("STABLE_DIFFUSION_3", "config"): (491, 683),
    ("STABLE_DIFFUSION_35", "config"): (923, 1227),
    ("STABLE_DIFFUSION_35", "medium"): (665, 909),
    ("PIXART_ALPHA", "config"): (444, 611),
    ("PIXART_SIGMA", "config"): (436, 603),
    ("PIXART_SIGMA", "2048"): (436, 603),
    ("SANA", "config"): (316, 396),
    ("SANA", "600m"): (436, 548),
    ("SANA", "1.5-4800m"): (1156, 1396),
}
"""Family and size -> how many tensors the published file and diffusers' module have."""
QUICK = ("KREA_2",)


def slow_but(cases: Any) -> list[Any]:
    """The quick families in every test run, the others in the slow one."""
    return [
        case if case[0] in QUICK and case[1] == "config" else pytest.param(*case, marks=pytest.mark.slow)
        for case in cases
    ]


@lru_cache(maxsize=4)
def module_of(key: str, size: str, name: str = "") -> nn.Module:
    """A part at its real size on the meta device; the denoiser by default."""
    spec = tiny_setup(key).spec
    part = spec.part(name or spec.denoiser)
    # what inpaints is the plain model with further channels
    places = shipped(key, part.name) or shipped(key.removesuffix("_INPAINTING"), part.name)
    config = json.loads(next(place for place in places if place.stem == size).read_text("utf-8"))
    if spec.inpainting and part.name == spec.denoiser:
        config["in_channels"] = 9
    return outline(part, config)


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.to("meta") for name, tensor in module.state_dict().items()}


def published(key: str, size: str) -> Stored:
    """The tensors of a published file of the denoiser."""
    module = module_of(key, size)
    made = to_original(tensors_of(module), LAYOUTS[key])
    if key.startswith("PIXART"):
        # its sizes differ in nothing but their table of positions
        made["pos_embed"] = dict(module.named_buffers())["pos_embed.pos_embed"]
    return {name: ("BF16", tuple(tensor.shape)) for name, tensor in made.items()}


def sparse(path: Path, stored: Stored) -> Path:
    """A safetensors file whose values are a hole."""
    header: dict[str, Any] = {}
    place = 0
    for name, (kind, shape) in stored.items():
        end = place + BYTES[kind] * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + place)
    return path


def in_8_bits(stored: Stored, leaf: str, rows: bool) -> Stored:
    """Matrices in 8 bits with their scales."""
    made: Stored = {"scaled_fp8": ("F8_E4M3", (2,))}
    for name, (kind, shape) in stored.items():
        matrix = len(shape) == 2 and name.endswith(".weight")
        made[name] = ("F8_E4M3" if matrix else kind, shape)
        if matrix:
            made[f"{name.removesuffix('weight')}{leaf}"] = ("F32", (shape[0],) if rows else ())
    return made


def below(prefix: str, stored: Stored) -> Stored:
    return {f"{prefix}{name}": entry for name, entry in stored.items()}


def load(key: str, path: Path) -> Model:
    spec = tiny_setup(key).spec
    return tiny_setup(key).load(str(path), PartDtypes(lazy=True), [spec.denoiser])


def assert_fills(model: Model, module: nn.Module, size_told: bool = True) -> None:
    """Every tensor of the module has its place in the file, with its shape, and the size was guessed right where the
    file tells it.
    """
    wanted = tensors_of(module)
    found = lazy_base_tensors(model.denoiser)
    assert found.keys() == wanted.keys()
    assert {name: tuple(t.shape) for name, t in wanted.items()} == {n: t.shape for n, t in found.items()}
    assert not size_told or dict(model.denoiser.config) == dict(module.config)  # type: ignore[arg-type, call-overload]
    smallest = min(found.values(), key=lambda each: each.nbytes)
    assert not smallest.read().float().any()


@pytest.mark.parametrize(("key", "size"), slow_but(COUNTS))
def test_a_published_file_of_the_denoiser_is_used_whole(key: str, size: str, tmp_path: Path) -> None:
    stored, module, path = published(key, size), module_of(key, size), tmp_path / "model.safetensors"
    assert (len(stored), len(module.state_dict())) == COUNTS[key, size]
    layouts = {
        "published": stored,
        "below a prefix": below(PREFIX, stored),
        "names of diffusers": {n: ("F16", tuple(t.shape)) for n, t in module.state_dict().items()},
        "8 bits": in_8_bits(stored, "scale_weight", rows=False),
        "8 bits by rows": below(PREFIX, in_8_bits(stored, "weight_scale", rows=True)),
    }
    for layout, tensors in layouts.items():
        # diffusers' files of PixArt have no table of positions
        told = not key.startswith("PIXART") or layout != "names of diffusers"
        assert_fills(load(key, sparse(path, tensors)), module, told)


@pytest.mark.parametrize(("key", "size"), slow_but(COUNTS))
def test_shards_of_a_folder_are_used_whole(key: str, size: str, tmp_path: Path) -> None:
    module = module_of(key, size)
    spec = tiny_setup(key).spec
    place = tmp_path / "model" / spec.denoiser
    place.mkdir(parents=True)
    source = next(each for each in shipped(key, spec.denoiser) if each.stem == size)
    (place / "config.json").write_text(source.read_text("utf-8"), "utf-8")
    listed: dict[str, str] = {}
    state = module.state_dict()
    names = list(state)
    for number in range(1, 4):
        name = f"diffusion_pytorch_model-{number:05d}-of-00003.safetensors"
        held = names[number - 1 :: 3]
        sparse(place / name, {each: ("BF16", tuple(state[each].shape)) for each in held})
        listed |= dict.fromkeys(held, name)
    index = place / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": listed}), "utf-8")
    part = spec.part(spec.denoiser)
    entries = {part.name: ["diffusers", part.classes[0]], "scheduler": ["diffusers", "Scheduler"]}
    (tmp_path / "model" / "model_index.json").write_text(json.dumps(entries), "utf-8")
    schedule = next(iter(shipped(key, "scheduler")))
    (tmp_path / "model" / "scheduler").mkdir()
    (tmp_path / "model" / "scheduler" / "scheduler_config.json").write_text(
        schedule.read_text("utf-8"), "utf-8"
    )
    assert_fills(load(key, tmp_path / "model"), module)


def matrix_of(stored: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    return next(name for name, (_, shape) in stored.items() if len(shape) == 2 and len({1, *shape}) == 3)


@pytest.mark.parametrize(("key", "size"), slow_but((key, size) for key, size in COUNTS if size == "config"))
def test_what_is_wrong_with_a_file_is_named(key: str, size: str, tmp_path: Path) -> None:
    stored, path = published(key, size), tmp_path / "model.safetensors"
    name = matrix_of(stored)
    kind, shape = stored[name]
    less = {each: entry for each, entry in stored.items() if each != name}
    more: Stored = {**stored, "a_new_gate.weight": ("BF16", (8, 8))}
    turned: Stored = {**stored, name: (kind, shape[::-1])}
    label = "Krea 2" if key != "KREA_2" else "Qwen-Image"
    other = published("KREA_2" if key != "KREA_2" else "QWEN", "config")
    for tensors, said in (
        (less, ("missing or of another shape", name)),
        (more, ("unknown (1)", "a_new_gate.weight")),
        (turned, ("missing or of another shape", name, str(shape[::-1]))),
        (below("core.", stored), ("unknown (", "  core.")),
        (other, (f"it looks like {label}",)),
    ):
        with pytest.raises(UserError) as caught:
            load(key, sparse(path, tensors))
        assert all(words in str(caught.value) for words in said), str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "other", "size", "said"),
    [
        ("FLUX_2_DEV", "FLUX_2", "config", "FLUX.2 klein 4B"),
        ("FLUX_2_DEV", "FLUX_2", "9b", "FLUX.2 klein 9B"),
        ("FLUX_2", "FLUX_2_DEV", "config", "FLUX.2 dev"),
    ],
)
def test_sizes_that_are_families_of_their_own_are_named(
    key: str, other: str, size: str, said: str, tmp_path: Path
) -> None:
    path = sparse(tmp_path / "model.safetensors", published(other, size))
    with pytest.raises(UserError, match=f"is {said}") as caught:
        load(key, path)
    assert f"model_type to {other}" in str(caught.value)


# -- whole files of the first generations ------------------------------------------------------------------------


def _last_layer() -> Stored:
    """The text encoder's last layer, whose states the models of the second generation do not read."""
    width, at = 1024, "cond_stage_model.model.transformer.resblocks.23."
    shapes = {
        "attn.in_proj_weight": (3 * width, width),
        "attn.in_proj_bias": (3 * width,),
        "attn.out_proj.weight": (width, width),
        "attn.out_proj.bias": (width,),
        "mlp.c_fc.weight": (4 * width, width),
        "mlp.c_fc.bias": (4 * width,),
        "mlp.c_proj.weight": (width, 4 * width),
        "mlp.c_proj.bias": (width,),
        **{f"ln_{number}.{leaf}": (width,) for number in (1, 2) for leaf in ("weight", "bias")},
    }
    return {f"{at}{name}": ("F32", shape) for name, shape in shapes.items()}


COMPUTED: dict[str, Stored] = {
    "STABLE_DIFFUSION_15": {
        "cond_stage_model.transformer.text_model.embeddings.position_ids": ("I64", (1, 77)),
    },
    "STABLE_DIFFUSION_XL_10_BASE": {
        "conditioner.embedders.0.transformer.text_model.embeddings.position_ids": ("I64", (1, 77)),
        "conditioner.embedders.1.model.logit_scale": ("F16", ()),
    },
    "STABLE_DIFFUSION_20": {
        "cond_stage_model.model.logit_scale": ("F32", ()),
        "cond_stage_model.model.text_projection": ("F32", (1024, 1024)),
        **_last_layer(),
    },
}
"""What the published files hold besides the weights of the parts."""
WHOLE = {
    "STABLE_DIFFUSION_15": {PREFIX: 686, "first_stage_model.": 248, "cond_stage_model.": 197},
    "STABLE_DIFFUSION_15_INPAINTING": {PREFIX: 686, "first_stage_model.": 248, "cond_stage_model.": 197},
    "STABLE_DIFFUSION_20": {PREFIX: 686, "first_stage_model.": 248, "cond_stage_model.": 294},
    "STABLE_DIFFUSION_20_INPAINTING": {PREFIX: 686, "first_stage_model.": 248, "cond_stage_model.": 294},
    "STABLE_DIFFUSION_XL_10_BASE": {
        PREFIX: 1680,
        "first_stage_model.": 248,
        "conditioner.embedders.0.": 197,
        "conditioner.embedders.1.": 390,
    },
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": {
        PREFIX: 1680,
        "first_stage_model.": 248,
        "conditioner.embedders.0.": 197,
        "conditioner.embedders.1.": 390,
    },
}
"""Tensors of whole files by prefix. Those of XL are 2515 together; the header of a file with metadata has one entry
more, ``__metadata__``.
"""


def whole(key: str) -> Stored:
    """A whole file of a UNet family, in half precision."""
    setup = tiny_setup(key)
    made: Stored = {}
    for part in (part for part in setup.spec.parts if part.file_prefix):
        module = module_of(key, "config", part.name)
        tensors = file_tensors(part, module, tensors_of(module))
        made |= {name: ("F16", tuple(tensor.shape)) for name, tensor in tensors.items()}
    return made | COMPUTED[key.removesuffix("_INPAINTING")]


@pytest.mark.slow
@pytest.mark.parametrize("key", WHOLE)
def test_a_whole_file_is_used_whole(key: str, tmp_path: Path) -> None:
    from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint

    stored = whole(key)
    counts = {prefix: sum(name.startswith(prefix) for name in stored) for prefix in WHOLE[key]}
    assert counts == WHOLE[key] and sum(counts.values()) == len(stored)
    module = module_of(key, "config")
    meta = {name: torch.empty(shape, device="meta") for name, (_, shape) in stored.items()}
    theirs = convert_ldm_unet_checkpoint(dict(meta), dict(module.config))  # type: ignore[arg-type, call-overload]
    own = module.state_dict()
    assert {n: t.shape for n, t in theirs.items()} == {n: t.shape for n, t in own.items()}
    path = sparse(tmp_path / "model.safetensors", stored)
    setup = tiny_setup(key)
    model = setup.load(str(path), PartDtypes(lazy=True), setup.spec.module_parts)
    for name in setup.spec.module_parts:
        wanted = module_of(key, "config", name).state_dict()
        found = lazy_base_tensors(model.module(name))
        assert {n: tuple(t.shape) for n, t in wanted.items() if "position_ids" not in n} == {
            n: t.shape for n, t in found.items()
        }, name
    unet = matrix_of({name: entry for name, entry in stored.items() if name.startswith(PREFIX)})
    for tensors, said in (
        ({name: entry for name, entry in stored.items() if name != unet}, unet.removeprefix(PREFIX)),
        ({**stored, f"{PREFIX}gate.weight": ("F16", (8, 8))}, "gate.weight"),
        ({**stored, "second_model.gate.weight": ("F16", (8, 8))}, "second_model.gate.weight"),
        ({**stored, unet: ("F16", stored[unet][1][::-1])}, unet.removeprefix(PREFIX)),
        (below("net.", stored), "is not one of" if key.startswith("STABLE_DIFFUSION_2") else "is not a"),
    ):
        with pytest.raises(UserError) as caught:
            setup.load(str(sparse(path, tensors)), PartDtypes(lazy=True), setup.spec.module_parts)
        assert said in str(caught.value), str(caught.value)


# -- a file of two parts -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_anima_s_file_holds_its_conditioner_too(tmp_path: Path) -> None:
    """567 tensors of the denoiser and 118 of the network between the tokenizers, all below one prefix."""
    key, name = "ANIMA", "text_encoder_2"
    conditioner, path = module_of(key, "config", name), tmp_path / "model.safetensors"
    own: Stored = {
        f"llm_adapter.{each}": ("BF16", tuple(tensor.shape)) for each, tensor in tensors_of(conditioner).items()
    }
    stored = below("net.", {**published(key, "config"), **own})
    assert (len(own), len(stored)) == (118, 567 + 118)
    assert_fills(load(key, sparse(path, stored)), module_of(key, "config"))
    setup = tiny_setup(key)

    def read(tensors: Stored) -> Model:
        source = str(sparse(path, tensors))
        sources = {setup.spec.denoiser: source, name: source}
        return setup.load(str(tiny_folder(key)), PartDtypes(lazy=True), [name], part_sources=sources)

    found = lazy_base_tensors(read(stored).module(name))
    assert {n: t.shape for n, t in found.items()} == {n: tuple(t.shape) for n, t in tensors_of(conditioner).items()}
    matrix = f"net.{matrix_of(own)}"
    for tensors, said in (
        ({each: entry for each, entry in stored.items() if each != matrix}, matrix.removeprefix("net.llm_adapter.")),
        ({**stored, "net.llm_adapter.gate.weight": ("BF16", (8, 8))}, "gate.weight"),
        ({**stored, matrix: ("BF16", stored[matrix][1][::-1])}, matrix.removeprefix("net.llm_adapter.")),
    ):
        with pytest.raises(UserError) as caught:
            read(tensors)
        assert said in str(caught.value), str(caught.value)
