"""Text encoders in fewer bits, and where layers of 4 and 8 bits keep what they rounded."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import nn

from modules.model.batch import Conditioning
from modules.model.compact import FrozenLinear, quantize, roundable_layers
from modules.model.Model import Model
from tests.tiny import factories, tiny_model, tiny_setup

pytest.importorskip("bitsandbytes")
# one family for each class of text encoder
FAMILIES = ("FLUX_DEV_1", "STABLE_DIFFUSION_3", "SANA", "QWEN", "FLUX_2", "Z_IMAGE")
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
    return bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)


def test_every_class_of_text_encoder_is_looked_at() -> None:
    def classes(keys: object) -> set[str]:
        parts = [part for key in keys for part in tiny_setup(key).spec.of_kind("text_encoder")]  # type: ignore[attr-defined]
        return {part.classes[0] for part in parts}

    assert classes(FAMILIES) == classes(factories())


@pytest.mark.parametrize("kind", list(NEAR))
@pytest.mark.parametrize("key", FAMILIES)
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
