"""Text encoders in fewer bits, and where layers of 4 and 8 bits keep what they rounded."""

from __future__ import annotations

import itertools
import logging
from functools import lru_cache

import pytest
import torch
from torch import nn

from modules.model.batch import Conditioning
from modules.model.compact import FrozenLinear, quantize, roundable_layers
from modules.model.Model import Model
from tests.tiny import factories, tiny_model, tiny_setup
from tests.usual import usual

pytest.importorskip("bitsandbytes")
# one family for each class of text encoder
FAMILIES = (
    "FLUX_DEV_1",
    "STABLE_DIFFUSION_3",
    "SANA",
    "QWEN",
    "FLUX_2",
    "Z_IMAGE",
    "KREA_2",
    "ERNIE",
    "FLUX_2_DEV",
    "QWEN_21",
    "HI_DREAM_FULL",
    "ANIMA",
)
# of random weights, through all layers
NEAR = {"FLOAT_8": 0.12, "INT_8": 0.05, "NFLOAT_4": 0.6}
PROMPTS = ("a cat", "dog on a mat")


def encoded(key: str, model: Model) -> Conditioning:
    return tiny_setup(key).encode_text(model, PROMPTS)


@lru_cache
def exact(key: str) -> Conditioning:
    return encoded(key, tiny_model(key))


def distance(one: Conditioning, other: Conditioning) -> float:
    """The largest relative difference of two conditionings' tensors."""
    return max(
        float((value.float() - other.tensors[name].float()).norm() / other.tensors[name].float().norm())
        for name, value in one.tensors.items()
    )


def rounded_and_back(layer: nn.Module) -> torch.Tensor:
    """The weight a layer of fewer bits computes with."""
    import bitsandbytes

    if isinstance(layer, FrozenLinear):
        assert layer.scale_O1 is not None
        return layer.weight.float() * layer.scale_O1
    return bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.state())


def test_every_class_of_text_encoder_is_looked_at() -> None:
    def classes(keys: object) -> set[str]:
        parts = [part for key in keys for part in tiny_setup(key).spec.of_kind("text_encoder")]  # type: ignore[attr-defined]
        return {part.classes[0] for part in parts}

    assert classes(FAMILIES) == classes(factories())


# every family with one way of keeping weights after another
@pytest.mark.parametrize(
    ("key", "kind"), usual(itertools.product(FAMILIES, NEAR), *zip(FAMILIES, itertools.cycle(NEAR)))
)
def test_text_encoders_in_fewer_bits_say_nearly_the_same(key: str, kind: str) -> None:
    model, plain = tiny_model(key), tiny_model(key)
    for name in model.text_encoders:
        assert quantize(model.module(name), kind, torch.float32) > 0
        model.to(name, "cpu")
    got = encoded(key, model)
    assert 0.0 < distance(got, exact(key)) < NEAR[kind]
    if kind == "INT_8":  # rounds what goes in as well
        return
    for name in plain.text_encoders:
        for parent, child, layer in roundable_layers(plain.module(name)):
            path = next(path for path, module in plain.module(name).named_modules() if module is parent)
            layer.weight.data = rounded_and_back(
                getattr(model.module(name).get_submodule(path), child)
            ).reshape(layer.weight.shape)
    assert distance(got, encoded(key, plain)) < 1e-4, "computes with other weights than the rounded ones"


@pytest.mark.parametrize("kind", list(NEAR))
def test_what_the_library_keeps_in_full_precision_stays(kind: str) -> None:
    encoder = tiny_model("FLUX_DEV_1").module("text_encoder_2")
    outputs = [path for path, layer in encoder.named_modules() if path.endswith(".wo")]
    changed = quantize(encoder, kind, torch.float32)
    assert outputs and all(type(encoder.get_submodule(path)) is nn.Linear for path in outputs)
    assert encoder.stored_as == f"{kind} in {changed} layers", "cached texts depend on it"


def tensors_of(module: nn.Module) -> list[torch.Tensor]:
    """Every tensor a module's layers hold, in whatever way."""
    found: list[torch.Tensor] = []

    def look(value: object, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
        for inner in vars(value).values() if depth and hasattr(value, "__dict__") else ():
            look(inner, depth - 1)
        for inner in value.values() if isinstance(value, dict) else ():
            look(inner, depth)

    for layer in module.modules():
        look(vars(layer), 3)
    return found


@pytest.mark.parametrize("kind", ["INT_8", "NFLOAT_4"])
def test_what_is_rounded_leaves_with_its_part(kind: str) -> None:
    model = tiny_model()
    encoder = model.module("text_encoder")
    quantize(encoder, kind, torch.float32)
    model.to("text_encoder", "cpu")
    encoded("STABLE_DIFFUSION_15", model)
    before = encoder.state_dict()
    model.to("text_encoder", "cpu")
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    encoder.to(torch.bfloat16)
    scales = [layer.scale_O for layer in encoder.modules() if hasattr(layer, "scale_O")]
    assert all(scale.dtype == torch.float32 for scale in scales)
    encoder.to("meta")
    left = [tensor for tensor in tensors_of(encoder) if tensor.device.type != "meta"]
    assert not left


@pytest.mark.parametrize("kind", ["INT_8", "NFLOAT_4"])
def test_a_part_is_used_before_it_is_moved(kind: str) -> None:
    model, moved = tiny_model(), tiny_model()
    for one in (model, moved):
        quantize(one.module("text_encoder"), kind, torch.float32)
    moved.to("text_encoder", "cpu")
    one, other = (encoded("STABLE_DIFFUSION_15", each).tensors["hidden_BLE"] for each in (model, moved))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["INT_8", "NFLOAT_4"])
@pytest.mark.parametrize("training", [False, True])
def test_layers_of_integers_follow_autocast(kind: str, training: bool) -> None:
    torch.manual_seed(0)
    block = nn.ModuleList([nn.ModuleDict({"layer": nn.Linear(128, 64)})]).train(training)
    plain = block[0]["layer"]
    quantize(block, kind, torch.bfloat16)
    layer = block.train(training)[0]["layer"]
    x = torch.randn(2, 3, 128, requires_grad=True)
    seen: list[torch.dtype] = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, expected = layer(x), plain(x)
    out.register_hook(lambda grad: seen.append(grad.dtype))
    assert out.dtype == expected.dtype == torch.bfloat16
    assert torch.allclose(out.float(), expected.float(), atol=0.5)
    out.float().sum().backward()
    assert seen == [torch.bfloat16], "the backward pass computes in the narrow type"
    assert x.grad is not None and x.grad.dtype == torch.float32
    assert layer.bias.dtype == torch.float32, "the bias keeps its precision"


def test_eight_bits_are_quiet(caplog: pytest.LogCaptureFixture) -> None:
    block = nn.ModuleList([nn.ModuleDict({"layer": nn.Linear(64, 64)})]).eval()
    quantize(block, "INT_8", torch.float32)
    with caplog.at_level(logging.WARNING):
        block[0]["layer"](torch.randn(2, 64))
        logging.getLogger("bitsandbytes.autograd._functions").warning("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]
