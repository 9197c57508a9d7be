"""Parts in fewer bits on a device of its own memory; taken by ``test_another_device.py`` with the plugin beside it."""

from __future__ import annotations

import pytest
import torch

from modules.model.compact import quantize
from tests.device.plugin import NAME as DEVICE
from tests.tiny import tiny_model, tiny_setup


@pytest.mark.parametrize("kind", ["FLOAT_8", "INT_8", "NFLOAT_4"])
def test_a_part_in_fewer_bits_leaves_nothing_behind(kind: str) -> None:
    if kind != "FLOAT_8":
        pytest.importorskip("bitsandbytes")
    setup, model = tiny_setup(), tiny_model()
    quantize(model.module("text_encoder"), kind, torch.float32)
    model.place(DEVICE, ())
    memory = torch.cuda.memory_allocated if DEVICE == "cuda" else getattr(torch, DEVICE).live
    before, states = memory(), []
    for _ in range(2):
        with model.borrowed("text_encoder"):
            states.append(setup.encode_text(model, ["a cat"]).to("cpu").tensors["hidden_BLE"])
        # the library keeps its tables, once
        assert memory() - before < 4096
    assert torch.equal(*states)
    # where it is now; the tiny layers are narrower than a block of four bits, which the kernels take differently
    model.device = torch.device("cpu")
    here = setup.encode_text(model, ["a cat"]).tensors["hidden_BLE"]
    assert (here - states[0]).norm() < (0.4 if kind == "NFLOAT_4" else 0.02) * here.norm()
