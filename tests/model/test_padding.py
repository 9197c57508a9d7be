"""Edges that are wrapped around: an image that is shifted in a circle gives a result shifted in a circle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modules.model.patches import wrap_edges
from modules.modelSetup import training
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError
from tests.tiny import tiny_folder, tiny_setup


def test_a_shift_in_a_circle_stays_one() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 3, 5, padding=2), nn.Conv2d(3, 3, 1)
    )
    image_BCHW = torch.randn(1, 3, 8, 8)

    def gap() -> float:
        moved = layers(image_BCHW.roll((3, 2), dims=(2, 3)))
        return float((moved - layers(image_BCHW).roll((3, 2), dims=(2, 3))).abs().max())

    assert gap() > 0.01
    assert wrap_edges(layers) == 2, "a convolution of one pixel has no edge"
    assert gap() < 1e-5


def test_the_denoiser_the_vae_and_an_adapter_see_the_other_edge() -> None:
    setup, made = tiny_setup(), []
    for wrapped in (False, True):
        config = TrainConfig.from_dict({
            "base_model_name": str(tiny_folder()), "force_circular_padding": wrapped, "train_dtype": "FLOAT_32",
            "training_method": "LORA", "layer_filter_preset": "full",
        })  # fmt: skip
        model = training.load_model(setup, config)
        training.attach_or_unfreeze(model, config)
        modes = {
            layer.padding_mode for part in (model.denoiser, model.vae) for layer in part.modules()
            if isinstance(layer, nn.Conv2d) and any(layer.padding)
        }  # fmt: skip
        assert modes == {"circular" if wrapped else "zeros"}
        image_BCHW = torch.linspace(0, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
        made.append(
            (setup.encode_image(model, image_BCHW), model.fingerprint("vae"), model.fingerprint("unet"))
        )
    assert not torch.equal(made[0][0], made[1][0])
    assert made[0][1] != made[1][1], "latents are encoded again"
    assert made[0][2] != made[1][2]


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"peft_type": "LOHA"}, True),
        ({"peft_type": "LOKR"}, True),
        ({"peft_type": "LOHA", "layer_filter_preset": "attn-only"}, False),
        ({"lora_decompose": True, "dropout_probability": 0.1}, True),
        ({"lora_decompose": True}, False),
        (
            {"lora_decompose": True, "lora_decompose_output_axis": False, "dropout_probability": 0.1},
            False,
        ),
    ],
)
def test_adapters_that_pad_with_zeros_themselves_are_refused(changed: dict[str, Any], refused: bool) -> None:
    setup = tiny_setup()
    config = TrainConfig.from_dict({
        "base_model_name": str(tiny_folder()), "force_circular_padding": True, "train_dtype": "FLOAT_32",
        "training_method": "LORA", "layer_filter_preset": "full", **changed,
    })  # fmt: skip
    model = training.load_model(setup, config, parts=("unet",))
    if not refused:
        training.attach_or_unfreeze(model, config)
        return
    with pytest.raises(UnsupportedError) as error:
        training.attach_or_unfreeze(model, config)
    assert error.value.field == "force_circular_padding" and error.value.hint


def test_a_model_without_such_convolutions_refuses_it() -> None:
    config = TrainConfig.from_dict({
        "model_type": "QWEN", "base_model_name": str(tiny_folder("QWEN")), "force_circular_padding": True,
        "train_dtype": "FLOAT_32",
    })  # fmt: skip
    with pytest.raises(UnsupportedError) as error:
        training.load_model(tiny_setup("QWEN"), config, parts=("transformer",))
    assert error.value.field == "force_circular_padding"
