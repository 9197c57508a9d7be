"""Parts in fewer bits on a device of its own memory; taken by ``test_another_device.py`` with the plugin next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.model.compact import quantize
from tests.device.plugin import NAME as DEVICE
from tests.tiny import tiny_model, tiny_setup
from tests.trainer.builders import run_here, write_config


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


def test_a_run_with_dropped_captions_encodes_on_the_device(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    seen, setup = [], type(tiny_setup())
    encode = setup._encode

    def noted(self: Any, model: Any, texts: Any) -> Any:
        seen.append({t.device.type for t in model.module("text_encoder").parameters()})
        return encode(self, model, texts)

    part = {"weight_dtype": "INT_8", "dropout_probability": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "_encode", noted)
        run_here(write_config(tmp_path, text_encoder=part, unet={"weight_dtype": "INT_8"}))
    assert seen and all(devices == {DEVICE} for devices in seen)
    weights = load_file(tmp_path / "out.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())
