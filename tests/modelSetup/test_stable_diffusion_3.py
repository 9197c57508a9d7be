"""Stable Diffusion 3 as it is often published: without its largest text encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from modules.modelSetup import training
from modules.util.errors import UserError
from tests.tiny import SIZE, tiny_setup
from tests.tiny.batches import images
from tests.tiny.stable_diffusion_3 import write

KEY = "STABLE_DIFFUSION_3"


def test_a_folder_without_t5_works_and_is_saved_without_it(tmp_path: Path) -> None:
    write(tmp_path / "model", factor=4, with_t5=False)
    setup = tiny_setup(KEY)
    model = setup.load(str(tmp_path / "model"))
    assert "text_encoder_3" not in model.modules()
    cond = setup.encode_text(model, ["a cat"])
    assert not cond["hidden_BLE"][:, -256:].any(), "the missing encoder's tokens are zero"
    assert cond["hidden_BLE"][:, :-256].any()
    first = images(setup, model, ["a cat"], seeds=[1], steps=2, size=SIZE)
    training.save(model, tmp_path / "out", "DIFFUSERS")
    again = setup.load(str(tmp_path / "out"))
    assert torch.equal(first, images(setup, again, ["a cat"], seeds=[1], steps=2, size=SIZE))


def test_what_the_index_says_about_the_whole_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "model", factor=4)
    index_path = tmp_path / "model" / "model_index.json"
    index_path.write_text(json.dumps({**json.loads(index_path.read_text()), "is_distilled": True}))
    setup = tiny_setup(KEY)
    training.save(setup.load(str(tmp_path / "model")), tmp_path / "out", "DIFFUSERS")
    assert json.loads((tmp_path / "out" / "model_index.json").read_text())["is_distilled"] is True


def test_a_promised_part_must_be_there(tmp_path: Path) -> None:
    write(tmp_path / "model", factor=4, with_t5=False)
    index_path = tmp_path / "model" / "model_index.json"
    index = json.loads(index_path.read_text())
    index["text_encoder_3"] = ["transformers", "T5EncoderModel"]
    index_path.write_text(json.dumps(index))
    with pytest.raises(UserError, match="text_encoder_3 is missing"):
        tiny_setup(KEY).load(str(tmp_path / "model"))
