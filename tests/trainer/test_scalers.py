"""Loss and learning rate scaled by the batch, against the same factor given by hand."""

from __future__ import annotations

from typing import Any

import torch

from modules.util.enum.choices import Scaler
from tests.house.acts import outcomes as see
from tests.house.acts.bases import pictures
from tests.house.acts.case import fresh_folder, write

STEP = {
    "max_steps": 1,
    "batch_size": 2,
    "ema": "OFF",
    "learning_rate_warmup_steps": 0.0,
    "learning_rate": 0.25,
}


def trained(**changed: Any) -> dict[str, torch.Tensor]:
    """The adapter after one step of SGD."""
    with fresh_folder() as folder:
        return see.weights.part(see.weights.source(folder, write(folder, pictures, {**STEP, **changed})))


def test_factors() -> None:
    found = {one.value: one.factor(4, 3, 2) for one in Scaler}
    assert found == {
        "NONE": 1, "BATCH": 4, "GLOBAL_BATCH": 8, "GRADIENT_ACCUMULATION": 3, "BOTH": 12, "GLOBAL_BOTH": 24,
    }  # fmt: skip


def test_a_scaled_step_is_the_step_with_the_factor_by_hand() -> None:
    scaled = trained(loss_scaler="BATCH")
    assert not see.differ(scaled, trained(learning_rate=0.5))
    assert see.differ(scaled, trained())
    assert not see.differ(trained(learning_rate_scaler="BATCH"), trained(learning_rate=0.25 * 2**0.5))


def test_the_rate_of_the_weights_that_muon_leaves_to_adam_is_scaled_like_the_others() -> None:
    def with_muon(adam_rate: float, **changed: Any) -> dict[str, torch.Tensor]:
        params = {"muon_hidden_layers": "attn1", "muon_adam_lr": adam_rate}
        return trained(optimizer={"optimizer": "MUON", "params": params}, **changed)

    scaled = with_muon(0.01, learning_rate_scaler="BATCH")
    assert not see.differ(scaled, with_muon(0.01 * 2**0.5, learning_rate=0.25 * 2**0.5))
    assert see.differ(scaled, with_muon(0.01, learning_rate=0.25 * 2**0.5))
