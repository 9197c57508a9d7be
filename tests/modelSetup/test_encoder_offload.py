"""Text encoders of which a share stays in main memory: the same states, with fewer bytes on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.model.compact import FrozenLinear, block_layers
from modules.modelSetup import training
from modules.trainer.memory.memory_plan import plan_memory
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from tests.tiny import tiny_folder, tiny_setup

KEY, ENCODER = "FLUX_DEV_1", "text_encoder_2"


def config_of(fraction: float, **changes: Any) -> TrainConfig:
    return TrainConfig.from_dict({
        "model_type": KEY, "base_model_name": str(tiny_folder(KEY)), "training_method": "LORA", "resolution": "64",
        "train_dtype": "FLOAT_32", "concepts": [], "text_encoder": {"train": False},
        ENCODER: {"offload_fraction": fraction, **changes.pop("encoder", {})}, **changes,
    })  # fmt: skip


def test_the_states_are_the_same_and_the_share_stays() -> None:
    setup, made = tiny_setup(KEY), []
    for fraction in (0.0, 0.5, 1.0):
        model = training.load_model(setup, config_of(fraction))
        encoder = model.module(ENCODER)
        layers = list(block_layers(encoder))
        staying = [layer for _, _, layer in layers if isinstance(layer, FrozenLinear) and layer.stays]
        assert len(staying) == round(fraction * len(layers))
        assert not any(isinstance(layer, FrozenLinear) for layer in model.module("text_encoder").modules())
        made.append(setup.encode_text(model, ["a red circle", ""])["hidden_BLE"])
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


@pytest.mark.slow
def test_the_forecast_leaves_the_share_out() -> None:
    phases = [plan_memory(config_of(fraction), cuda=False).phases[0] for fraction in (0.0, 1.0)]
    assert phases[0].name == phases[1].name == "encoding prompts"
    model = training.load_model(tiny_setup(KEY), config_of(0.0))
    staying = sum(layer.weight.numel() * 4 for _, _, layer in block_layers(model.module(ENCODER)))
    name = f"weights: {ENCODER}"
    assert phases[0].items[name] - phases[1].items[name] == staying


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"encoder": {"weight_dtype": "INT_8"}}, "cannot stay in main memory"),
        ({"encoder": {"train": True}, "training_method": "FINE_TUNE"}, "fine-tuned text encoder cannot stay"),
        ({"encoder": {"train": True, "gradient_checkpointing": False}}, "without gradient checkpointing"),
    ],
)
def test_what_cannot_stay_is_refused(changes: dict[str, Any], text: str) -> None:
    errors = find_problems(config_of(0.5, **changes)).errors
    assert [error.field for error in errors if text in error.message] == [f"{ENCODER}.offload_fraction"]
