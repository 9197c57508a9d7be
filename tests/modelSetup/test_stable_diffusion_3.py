"""Stable Diffusion 3 as it is often published: without its largest text encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from modules.modelSetup import training
from modules.trainer.memory.memory_plan import plan_memory
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from tests.tiny import SIZE, tiny_folder, tiny_setup
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


def left_out(**changes: object) -> TrainConfig:
    given = {"model_type": KEY, "base_model_name": str(tiny_folder(KEY)), "train_dtype": "FLOAT_32"}
    return TrainConfig.from_dict(
        {**given, "resolution": "32", "text_encoder_3": {"include": False}, **changes}
    )


def test_a_run_can_leave_t5_out_of_a_model_that_has_it(tmp_path: Path) -> None:
    """What is read and sampled is as with a folder that never had it."""
    setup, config = tiny_setup(KEY), left_out()
    model = training.load_model(setup, config)
    assert not {"text_encoder_3", "tokenizer_3"} & model.parts.keys()
    write(tmp_path / "model", factor=4, with_t5=False)
    other = setup.load(str(tmp_path / "model"))
    one, two = (setup.encode_text(each, ["a cat"])["hidden_BLE"] for each in (model, other))
    assert one.shape == two.shape and not one[:, -256:].any() and one[:, :-256].any()
    (encoding,) = (phase for phase in plan_memory(config).phases if phase.name == "encoding prompts")
    assert "weights: text_encoder_2" in encoding.items and "weights: text_encoder_3" not in encoding.items


def test_an_encoder_that_is_left_out_is_neither_read_nor_trained(tmp_path: Path) -> None:
    own = {"include": False, "model_name": str(tmp_path / "nothing.safetensors")}
    assert "text_encoder_3" not in training.load_model(tiny_setup(KEY), left_out(text_encoder_3=own)).parts
    for family, extra, words in (
        (KEY, {"train": True}, "cannot be trained"),
        ("HI_DREAM_FULL", {}, "HiDream-I1 cannot be used without this text encoder"),
    ):
        (fault,) = find_problems(
            left_out(model_type=family, text_encoder_3={"include": False, **extra})
        ).errors
        assert words in str(fault) and (fault.field or "").startswith("text_encoder_3.")
