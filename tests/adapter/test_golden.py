"""Key lists of what is written, and the lists of other programs' savers where they are at hand.

The lists under ``golden`` are renewed with ``python -m tests.adapter.test_golden``; read the difference before it is
kept.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.adapter.formats import COMFY, DIFFUSERS, KOHYA, LEGACY, adapter_tensors
from modules.adapter.PeftAdapter import AdapterHandle
from modules.adapter.reading import match_adapter
from modules.model.Model import Model
from tests.adapter.families import named_family, naming_families, trained, trained_family
from tests.tiny import tiny_model, tiny_setup
from tests.usual import usual

GOLDEN = Path(__file__).parent / "golden"
WILD = Path(__file__).parents[2].parent / "shared" / "data" / "lora_keys"
LAYOUTS = (KOHYA, LEGACY, COMFY, DIFFUSERS)
DEEPER = re.compile(r"layers[._]([2-9]|\d\d)[._]")
"""Layers like the first two."""
Shapes = dict[str, list[int]]


def keys(key: str) -> dict[str, dict[str, str]]:
    """Layout -> layer -> its suffixes and shapes, short enough to be read."""
    spec = tiny_setup(key).spec
    named = tuple(part.name for part in spec.of_kind("text_encoder") if part.comfy_name)
    lean = named_family(key)
    whole = lean if named == spec.trained_encoders else trained_family(key)
    made: dict[str, dict[str, str]] = {}
    for layout in LAYOUTS:
        handle = lean if layout == COMFY else whole
        layers: dict[str, str] = {}
        for name, tensor in adapter_tensors(handle, layout).items():
            layer, _, suffix = (
                name.rpartition(".alpha") if name.endswith(".alpha") else name.partition(".lora_")
            )
            if DEEPER.search(layer):
                continue
            shape = "x".join(map(str, tensor.shape))
            layers[layer] = f"{layers.get(layer, '')} {suffix or 'alpha'}[{shape}]".strip()
        made[layout] = layers
    return made


# diffusers reads what is written for these, or their names, in test_layouts, test_formats_xl and test_krea_2;
# two name their layers as FLUX_2 and STABLE_DIFFUSION_15
RARELY = (
    "FLUX_2",
    "FLUX_2_DEV",
    "IDEOGRAM_4",
    "KREA_2",
    "QWEN",
    "STABLE_DIFFUSION_20",
    "STABLE_DIFFUSION_XL_10_BASE",
    "Z_IMAGE",
)


@pytest.mark.parametrize(
    "key", usual(naming_families(), *(key for key in naming_families() if key not in RARELY))
)
def test_keys_are_those_of_the_list(key: str) -> None:
    assert json.loads((GOLDEN / f"{key}.json").read_text(encoding="utf-8")) == keys(key)


def sd15(_: dict[str, Shapes]) -> Model:
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    model = tiny_model()
    model.parts["unet"] = UNet2DConditionModel(
        block_out_channels=(32, 64, 128, 128), layers_per_block=1, cross_attention_dim=64
    )
    model.parts["text_encoder"] = clip(64, _)
    return model


def flux(lists: dict[str, Shapes]) -> Model:
    from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel

    model = tiny_model("FLUX_DEV_1")
    numbers = {
        kind: 1 + max(int(k.split(".")[1]) for k in lists["ORIGINAL_LORA"] if k.startswith(kind))
        for kind in ("double_blocks", "single_blocks")
    }
    model.parts["transformer"] = FluxTransformer2DModel(
        in_channels=16,
        num_layers=numbers["double_blocks"],
        num_single_layers=numbers["single_blocks"],
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    model.parts["text_encoder"] = clip(32, lists)
    model.parts.pop("text_encoder_2")
    return model


def clip(width: int, lists: dict[str, Shapes]) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    name = "text_encoder.text_model.encoder.layers.0.mlp.fc1.lora_B.weight"
    inner = lists[DIFFUSERS].get(name, [2 * width])[0]
    config = CLIPTextConfig(
        vocab_size=99, hidden_size=width, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=2
    )
    return CLIPTextModel(config)


def wild(family: str) -> dict[str, Shapes]:
    return {
        path.stem.removeprefix(f"{family}_"): json.loads(path.read_text(encoding="utf-8"))
        for path in WILD.glob(f"{family}_*.json")
    }


def by_side(shapes: Shapes) -> dict[str, Any]:
    """Without the rank, which fusing adds up: inputs of one factor, outputs of the other."""
    ups = ("lora_up.weight", "lora_B.weight")
    return {key: shape[:1] if key.endswith(ups) else shape[1:] for key, shape in shapes.items()}


needs_lists = pytest.mark.skipif(not WILD.is_dir(), reason="key lists of other programs are not at hand")


@needs_lists
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [sd15, flux])
def test_keys_and_shapes_are_those_found_in_the_wild(make: Any, layout: str) -> None:
    lists = wild(make.__name__)
    with_text = any("te1_" in key or "te_" in key or "text_encoder" in key for key in lists[layout])
    tensors = adapter_tensors(adapter_like(make, with_text), layout)
    shapes = {key: list(tensor.shape) for key, tensor in tensors.items()}
    assert by_side(shapes) == by_side(lists[layout])
    assert {k: s for k, s in shapes.items() if not fused(k)} == {
        k: s for k, s in lists[layout].items() if not fused(k)
    }


@cache
def model_like(make: Any) -> Model:
    """The model of the lists, only to be read."""
    made: Model = make(wild(make.__name__))
    return made


@cache
def adapter_like(make: Any, with_text: bool) -> AdapterHandle:
    """An adapter on the model of the lists, only to be read."""
    model = make(wild(make.__name__))
    return trained(model, rank=4, alpha=4.0, **({} if with_text else {"parts": (model.spec.denoiser,)}))


def fused(key: str) -> bool:
    return "qkv" in key or "linear1" in key


@needs_lists
@pytest.mark.parametrize("layout", [*LAYOUTS, "ORIGINAL_LORA"])
@pytest.mark.parametrize("make", [sd15, flux])
def test_files_of_other_programs_are_read(make: Any, layout: str) -> None:
    lists = wild(make.__name__)
    source = torch.Generator().manual_seed(0)
    tensors = {key: torch.randn(shape, generator=source) for key, shape in lists[layout].items()}
    model = model_like(make)
    file = match_adapter(tensors, {}, model, layout)
    whole = match_adapter({k: torch.zeros(s) for k, s in lists[LEGACY].items()}, {}, model, LEGACY)
    assert set(file.paths(whole.parts()[0])) == set(whole.paths(whole.parts()[0]))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in naming_families():
        text = json.dumps(keys(name), indent=1) + "\n"
        (GOLDEN / f"{name}.json").write_text(text, encoding="utf-8")
